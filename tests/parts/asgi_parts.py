"""Calls of an ASGI application in this process, without a socket, a server or a client."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Scope

JSON = {"content-type": "application/json"}


class Wire:
    """The client's end of a connection.

    Args:
        pieces: Pieces of the body, as they arrive.
        num_read: Number of messages that the client reads; after those it reads nothing.
        leaves: Whether the client disconnects when all of the body was sent.

    Attributes:
        sent: Messages that the client read.
        gone: Event set when the client disconnects.
    """

    def __init__(self, *pieces: bytes, num_read: int = 10**6, leaves: bool = False) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self._pieces = deque(pieces or [b""])
        self._num_read = num_read
        if leaves:
            self.gone.set()

    async def receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.popleft()
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.sent) == self._num_read:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def num_responses(self) -> int:
        """Number of responses that have started."""
        return sum(message["type"] == "http.response.start" for message in self.sent)

    @property
    def is_complete(self) -> bool:
        """Whether the response is complete."""
        return any(map(is_last, self.sent))

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream, which must end by DONE."""
        *events, done, end = self.body.decode().split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def is_last(message: Message) -> bool:
    """Whether a message ends a response."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


def scope_of(
    path: str, method: str = "POST", headers: Mapping[str, str] | None = None, **fields: Any
) -> Scope:
    """Return the ASGI scope of a request; `headers` are added to a Host of this machine."""
    given = {"host": "127.0.0.1:8000"} | {**(headers or {})}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
    } | fields


async def call(app: ASGIApp, wire: Wire, scope: Scope) -> Wire:
    """Call an application; return the wire."""
    await asyncio.wait_for(app(scope, wire.receive, wire.send), 20)
    return wire


def post(app: ASGIApp, path: str, **body: Any) -> Wire:
    """Post a JSON body, in an event loop of its own."""
    return asyncio.run(_send(app, scope_of(path, headers=JSON), json.dumps(body).encode()))


def get(app: ASGIApp, path: str) -> Wire:
    """Get a path, in an event loop of its own."""
    return asyncio.run(_send(app, scope_of(path, "GET"), b""))


async def _send(app: ASGIApp, scope: Scope, body: bytes) -> Wire:
    return await call(app, Wire(body), scope)
