"""Answers are msgspec structs, encoded once; a large one beside the event loop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.frontend.completions.logprob_row import LogprobRow
from quire.server.http.disconnect import run_while_connected

logger = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES = 64 * 1024
READ_TIMEOUT_S = 60.0  # a client that reads nothing for so long is taken for gone


class EncodedResponse(Response):
    """Wait for an answer as long as its client does; then send it as fast as the client reads.

    Args:
        make: Returns the answer as JSON.
        headers: More response headers.
        on_over: Called once nothing of the answer is held any more.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, bytes]],
        headers: dict[str, str],
        on_over: Callable[[], None],
    ) -> None:
        super().__init__(headers=headers, media_type="application/json")
        self._make = make
        self._on_over = on_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make it, and send all of it."""
        del scope
        try:
            body = await run_while_connected(self._make(), receive)
            await self._send(body, send)
        finally:
            self._on_over()

    async def _send(self, body: bytes, send: Send) -> None:
        """Send piece after piece: what the client has not read waits here, and only once."""
        self.headers["content-length"] = str(len(body))
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        try:
            for begin in range(0, len(body), PIECE_BYTES):
                end = begin + PIECE_BYTES
                piece = {"type": "http.response.body", "body": body[begin:end]}
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await send(piece | {"more_body": end < len(body)})
        except TimeoutError:
            logger.warning("a client read nothing for %g s: closing", READ_TIMEOUT_S)


def json_response(body: Any, status: int = 200) -> Response:
    """Return a struct, or plain data, as a JSON response."""
    return Response(json_of(body), status, media_type="application/json")


def json_of(body: Any) -> bytes:
    """Return a struct, or plain data, as JSON."""
    return _ENCODER.encode(body)


async def in_thread_if(is_large: bool, work: Callable[[], T]) -> T:
    """Do some work; beside the event loop, if it takes long."""
    return await asyncio.to_thread(work) if is_large else work()


def _plain(value: object) -> object:
    """Return what msgspec does not know as something that it does."""
    if isinstance(value, LogprobRow):
        return value.as_dict()
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
