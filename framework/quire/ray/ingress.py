"""HTTP in front of the replicas: the guard, the prompt's tokens for the router, and retries.

A request whose replica died before the response began runs again on another one, once. If the
response had begun, a stream ends with an error event, and any other connection is broken.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.config import ServerSettings
from quire.errors import EngineDeadError, ReplicaDeadError, SettingsError
from quire.ray.prompt_reader import PromptReader
from quire.ray.serve_arguments import read_arguments
from quire.server.asgi_call import HTTPCall, ResponseStart
from quire.server.http.disconnect import run_while_connected
from quire.server.http.guard import Guard
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.accounts import Accounts
from quire.server.wire.bodies import BODY_TIMEOUT_S
from quire.server.wire.families import dialect_of
from quire.server.wire.http_errors import HTTPError, detail_of, log_failure, status_of

RESET = ("POST", "/reset_prefix_cache")
DEATHS = (RayActorError, EngineDeadError)  # of a replica's process, or of its engine

logger = logging.getLogger(__name__)


class Ingress:
    """The HTTP application in front of the replicas.

    Args:
        engines: Handle of the replicas.
        arguments: Options of quire by name.
    """

    def __init__(self, engines: DeploymentHandle[Any], arguments: dict[str, Any]) -> None:
        settings = read_arguments(arguments)
        forwarding = Forwarding(engines, PromptReader.load(settings))
        guard = Guard(forwarding, settings.server, Lifecycle(), load_accounts(settings.server))
        self._app = without_prefix(guard)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application, once this object is built."""
        return self._app


class Forwarding:
    """ASGI application that sends each request to a replica.

    Args:
        engines: Handle of the replicas.
        reader: Reader of prompts.
    """

    def __init__(self, engines: DeploymentHandle[Any], reader: PromptReader) -> None:
        self._engines = engines
        self._streams = engines.options(stream=True)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request to a replica, and its response to the client."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        with suppress(ClientDisconnect, TaskCancelledError):  # Serve cancels what has no reader
            call = HTTPCall.of(scope, await _body(receive))
            is_reset = (call.method, call.path) == RESET and call.is_admin
            forward = self._reset if is_reset else self._forward
            await run_while_connected(forward(call, send), receive, scope)

    async def _forward(self, call: HTTPCall, send: Send) -> None:
        """Run a request on a replica, and on a second one if the first dies too early.

        Raises:
            ReplicaDeadError: The second one died, too.
        """
        read = await self._reader.read(call.path, call.body, call.cache_salt)
        prompt = msgspec.msgpack.encode(read)
        encoded = msgspec.msgpack.encode(call)
        try:
            response = await self._begin(encoded, prompt)
        except DEATHS as death:
            logger.warning("request %s runs again: %s", call.request_id, _line(death))
            try:
                response = await self._begin(encoded, prompt)
            except DEATHS as second:
                raise ReplicaDeadError(
                    f"two replicas died with the request, which may be the cause: {_line(second)}"
                ) from second
        await _send_response(*response, call, send)

    async def _begin(
        self, call: bytes, prompt: bytes
    ) -> tuple[ResponseStart, AsyncGenerator[bytes]]:
        """Start a request on a replica; return the start of its response, and the rest."""
        rest = _cancelling(self._streams.respond.remote(call, prompt=prompt))
        return msgspec.msgpack.decode(await anext(rest), type=ResponseStart), rest

    async def _reset(self, call: HTTPCall, send: Send) -> None:
        """Run a request on all replicas, and send the response of the worst.

        Raises:
            ReplicaDeadError: None is ready.
        """
        encoded = msgspec.msgpack.encode(call)
        results = await self._engines.broadcast("reset_prefix_cache", encoded).results_async()
        if not results:
            raise ReplicaDeadError("no replica is ready yet")
        found = [(msgspec.msgpack.decode(r[0], type=ResponseStart), r[1:]) for r in results]
        start, pieces = max(found, key=lambda response: response[0].status)
        await _send_response(start, _each(pieces), call, send)


def load_accounts(settings: ServerSettings) -> Accounts:
    """Return the accounts of the keys, of which each ingress counts its own requests.

    Raises:
        SettingsError: A key has a limit that is known in the replicas only.
    """
    accounts = Accounts.load(settings)
    for account in accounts.of_keys():
        for name in ("tokens_per_minute", "priority", "models"):
            if msgspec.structs.asdict(account.limits)[name] is not None:
                raise SettingsError(
                    f"the key {account.name!r} has {name}, which is not supported under Ray Serve; "
                    "leave it out"
                )
    return accounts


def without_prefix(app: ASGIApp) -> ASGIApp:
    """Return an application whose paths begin after Serve's `route_prefix`."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        prefix = scope.get("root_path", "")
        if prefix:
            path = scope["path"].removeprefix(prefix) or "/"
            scope = {**scope, "path": path, "root_path": ""}
        await app(scope, receive, send)

    return call


async def _send_response(
    start: ResponseStart, pieces: AsyncGenerator[bytes], call: HTTPCall, send: Send
) -> None:
    """Send a response; if the replica dies meanwhile, a stream of events ends with an error."""
    await send({"type": "http.response.start", "status": start.status, "headers": start.headers})
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except DEATHS as death:
        error = ReplicaDeadError(f"the replica died during the response: {_line(death)}")
        log_failure(error, call.request_id)
        if not start.is_event_stream:
            raise error from death  # too late for an error response: break the connection
        dialect = dialect_of(call.path)
        detail = detail_of(error, call.request_id)
        event = dialect.stream.frame(dialect.error(detail, status_of(error), call.request_id))
        event += dialect.stream.last
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancelling(items: DeploymentResponseGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the items of a call; closing the generator early cancels the call."""
    is_complete = False
    try:
        async for item in items:
            yield item
        is_complete = True
    finally:
        if not is_complete:
            items.cancel()


async def _each(pieces: Sequence[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


async def _body(receive: Receive) -> bytes:
    """Return the whole body, whose size the guard limits.

    Raises:
        HTTPError: It does not arrive in time.
        ClientDisconnect: The client has left.
    """
    pieces = []
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while (message := await receive())["type"] == "http.request":
                pieces.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise HTTPError(408, "the body did not arrive in time", code="timeout") from None
    raise ClientDisconnect


async def _live(receive: Receive, send: Send) -> None:
    """Answer the start and the end of the application, of which nothing depends."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


def _line(error: BaseException) -> str:
    """Return the last line of an error's message, which in Ray's has the cause."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
