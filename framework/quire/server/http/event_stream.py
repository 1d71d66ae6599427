"""Streamed events, with error events and keep-alives, in the format of the family of the route.

The headers are sent with the first event, so an error before it has an HTTP status. An error after
that is an event of its own, as `data: {"error": ...}`, which OpenAI's clients raise. What is sent
during silences keeps proxies from closing the connection.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.server.http.disconnect import exchange_of, run_while_connected
from quire.server.http.http_exchange import HTTPExchange
from quire.server.http.json_response import READ_TIMEOUT_S
from quire.server.wire.dialect import OPENAI
from quire.server.wire.families import dialect_of
from quire.server.wire.http_errors import (
    error_json,
    error_response,
    log_failure,
)

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0


class EventStream(Response):
    """Stream JSON texts as events; the generator is closed when the client disconnects.

    Args:
        events: JSON texts, each one line.
        request_id: Request id made by the server, for the log.
        keep_alive_s: Seconds of silence after which a comment is sent.
        on_close: Function called once no data of the response is held any more.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        request_id: str,
        keep_alive_s: float = KEEP_ALIVE_S,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._format = OPENAI.stream
        self._events = events
        self._request_id = request_id
        self._keep_alive_s = keep_alive_s
        self._on_close = on_close
        self._exchange: HTTPExchange | None = None
        self._has_started = False
        self._is_finished = False
        self._is_writing = False
        self._last_sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, until the last one or until the client disconnects."""
        self._exchange = exchange_of(scope)
        self._format = dialect_of(scope["path"]).stream
        self.headers["content-type"] = self._format.media_type
        self._last_sent_s = time.monotonic()
        self._look(send)
        try:
            await run_while_connected(self._pump(scope, receive, send), receive, scope)
        except ClientDisconnect:
            pass  # the generator was cancelled: the request is aborted
        finally:
            await self._stop_looking()
            await self._events.aclose()
            if self._on_close is not None:
                self._on_close()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        frame = self._format.frame
        try:
            async for event in self._events:
                await self._write(send, frame(event))
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes a response
            if await self._sent_error_response(error, scope, receive, send):
                return
            log_failure(error, self._request_id)
            await self._write(send, frame(error_json(error, scope, self._request_id)))
        await self._write(send, self._format.last, is_last=True)

    async def _sent_error_response(
        self, error: Exception, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Send an error response unless the headers are sent; return whether it was sent."""
        if self._comment is not None:
            await self._comment
        if self._has_started:
            return False
        self._has_started = self._is_finished = True
        await error_response(error, self._request_id)(scope, receive, send)
        return True

    def _look(self, send: Send) -> None:
        """Send a comment if the silence is long, and look again when it may be."""
        silence_s = time.monotonic() - self._last_sent_s
        if self._is_writing or self._is_finished:
            silence_s = 0.0
        elif silence_s >= self._keep_alive_s and self._format.keep_alive:
            self._comment = asyncio.create_task(self._write_comment(send))
            silence_s = 0.0
        delay_s = max(0.01, self._keep_alive_s - silence_s)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, send)

    async def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            await asyncio.gather(self._comment, return_exceptions=True)

    async def _write_comment(self, send: Send) -> None:
        await self._write_piece(send, self._format.keep_alive, is_last=False)
        self._comment = None

    async def _write(self, send: Send, body: bytes, *, is_last: bool = False) -> None:
        if self._comment is not None:
            await self._comment  # its failure is that of the stream
        await self._write_piece(send, body, is_last=is_last)

    async def _write_piece(self, send: Send, body: bytes, *, is_last: bool) -> None:
        self._is_writing = True
        self._is_finished = is_last
        self._last_sent_s = time.monotonic()
        if not self._has_started:
            self._has_started = True
            start = {"type": "http.response.start", "status": self.status_code}
            await send(start | {"headers": self.raw_headers})
        piece = {"type": "http.response.body", "body": body, "more_body": not is_last}
        if self._exchange is not None and self._exchange.is_writable:
            await send(piece)  # at once, so without the cost of a timeout
        else:
            await self._send_in_time(send, piece)
        self._is_writing = False

    async def _send_in_time(self, send: Send, piece: Message) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await send(piece)
        except TimeoutError:  # the rest need not be held
            logger.warning("a client read nothing for %g s: closing its connection", READ_TIMEOUT_S)
            raise ClientDisconnect from None
