"""JSON responses from msgspec structs; large ones are encoded in a thread."""

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
READ_TIMEOUT_S = 60.0  # a client that reads nothing for so long is disconnected


class EncodedResponse(Response):
    """A JSON response, computed while its client is connected and sent as fast as it reads.

    Args:
        make: Function that computes the response as JSON.
        on_close: Function called once no data of the response is held any more.
    """

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, bytes]], on_close: Callable[[], None]
    ) -> None:
        # `Response.__init__` would make an empty body, and headers for it.
        self.status_code = 200
        self.background = None
        self._make = make
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute the response and send it."""
        try:
            body = await run_while_connected(self._make(), receive, scope)
            await self._send(body, send)
        finally:
            self._on_close()

    async def _send(self, body: bytes, send: Send) -> None:
        """Send the body in pieces, so that unread data is held only once."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if len(body) <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        try:
            for begin in range(0, len(body), PIECE_BYTES):
                end = begin + PIECE_BYTES
                piece = {"type": "http.response.body", "body": body[begin:end]}
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await send(piece | {"more_body": end < len(body)})
        except TimeoutError:
            logger.warning("a client read nothing for %g s: closing its connection", READ_TIMEOUT_S)


def json_response(body: Any, status: int = 200) -> Response:
    """Return a struct, or plain data, as a JSON response."""
    return Response(json_of(body), status, media_type="application/json")


def json_of(body: Any) -> bytes:
    """Return a struct, or plain data, as JSON."""
    return _ENCODER.encode(body)


async def in_thread_if(is_large: bool, work: Callable[[], T]) -> T:
    """Run `work`: in a thread if it is large, else in the event loop."""
    return await asyncio.to_thread(work) if is_large else work()


def _plain(value: object) -> object:
    """Convert a value that msgspec does not support to one that it does."""
    if isinstance(value, LogprobRow):
        return value.as_dict()
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
