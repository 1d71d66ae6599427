"""An HTTP request as a call of an ASGI application without a connection; its response as bytes.

The caller may be in another process, as under Ray Serve, or have a file of requests. The first item
of a response is a `ResponseStart` as msgpack, the others are pieces of the body.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.keys.account import Account, account_of

Headers = list[tuple[bytes, bytes]]

QUEUED_MESSAGES = 64  # of a response that is not read


class HTTPCall(msgspec.Struct, frozen=True, array_like=True):
    """An HTTP request with its body.

    Attributes:
        method: Method, in capitals.
        path: Path, decoded.
        query: Query string.
        headers: Headers, with names in small letters.
        body: Whole body.
        request_id: Id of the request for its response and for logs.
        client: Identity of the client: the name of its key, or its address.
        age_s: Seconds since the request arrived, as the machines have no clock in common.
        cache_salt: Salt of the prefix cache of its key, if keys have caches of their own.
        is_admin: Whether it has an admin key.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    request_id: str
    client: str
    age_s: float = 0.0
    cache_salt: str | None = None
    is_admin: bool = False

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> "HTTPCall":
        """Return the call for a request that the guard has let through."""
        return cls(
            scope["method"],
            scope["path"],
            scope["query_string"],
            [(name, value) for name, value in scope["headers"]],
            body,
            scope["quire_request_id"],
            scope["quire_client"],
            time.monotonic() - scope["quire_arrival_s"],
            account_of(scope).cache_salt,
            scope["quire_is_admin"],
        )

    def scope(self) -> Scope:
        """Return the ASGI scope of the request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": self.headers,
            "quire_request_id": self.request_id,
            "quire_client": self.client,
            "quire_arrival_s": time.monotonic() - self.age_s,
            "quire_account": Account(self.client, cache_salt=self.cache_salt),
            "quire_is_admin": self.is_admin,
        }


class ResponseStart(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of a response."""

    status: int
    headers: Headers

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        types = [value for name, value in self.headers if name.lower() == b"content-type"]
        return any(value.startswith(b"text/event-stream") for value in types)


async def respond(app: ASGIApp, call: HTTPCall) -> AsyncGenerator[bytes]:
    """Run an application for one request; yield its response.

    Closing the generator is a disconnect of the client for the application.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue(QUEUED_MESSAGES)
    gone = asyncio.Event()
    running = asyncio.create_task(_run(app, call, messages, gone))
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                start = ResponseStart(message["status"], _pairs(message.get("headers", ())))
                yield msgspec.msgpack.encode(start)
            elif message.get("body"):
                yield message["body"]
        await running
    finally:
        gone.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _run(
    app: ASGIApp, call: HTTPCall, messages: asyncio.Queue[Message | None], gone: asyncio.Event
) -> None:
    """Run the application; None in the queue is the end of its response, also by an error."""
    try:
        await app(call.scope(), _receiver(call.body, gone), _sender(messages))
    finally:
        if not gone.is_set():  # else nothing takes messages any more
            await messages.put(None)


def _receiver(body: bytes, gone: asyncio.Event) -> Receive:
    pieces = [body]

    async def receive() -> Message:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def _sender(messages: asyncio.Queue[Message | None]) -> Send:
    async def send(message: Message) -> None:
        await messages.put(dict(message))

    return send


def _pairs(headers: Sequence[Sequence[bytes]]) -> Headers:
    return [(bytes(name), bytes(value)) for name, value in headers]
