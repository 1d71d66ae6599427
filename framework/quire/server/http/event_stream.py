"""Server-sent events, with error events and keep-alive comments.

The headers are sent with the first event, so an error before it has an HTTP status. An error after
that is an event of its own, `data: {"error": ...}`, which OpenAI's clients raise. Comments during
silences keep proxies from closing the connection.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.http.disconnect import run_until
from quire.server.http.json_response import READ_TIMEOUT_S
from quire.server.wire.http_errors import error_json, error_response, log_failure

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0
_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"


class EventStream(Response):
    """Stream JSON texts as events; the generator is closed when the client disconnects.

    Args:
        events: JSON texts, each one line.
        headers: Further response headers.
        request_id: Request id made by the server, for the log.
        keep_alive_s: Seconds of silence after which a comment is sent.
        on_close: Function called once no data of the response is held any more.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        headers: dict[str, str],
        request_id: str,
        keep_alive_s: float = KEEP_ALIVE_S,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(headers=_HEADERS | headers)
        del self.headers["content-length"]
        self._events = events
        self._request_id = request_id
        self._keep_alive_s = keep_alive_s
        self._on_close = on_close
        self._has_started = False
        self._is_finished = False
        self._last_sent_s = 0.0
        self._send_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, until the last one or until the client disconnects."""
        try:
            await run_until(self._pump(scope, receive, send), self._watch(receive, send))
        except ClientDisconnect:
            pass  # the generator was cancelled: the request is aborted
        finally:
            await self._events.aclose()
            if self._on_close is not None:
                self._on_close()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for event in self._events:
                await self._write(send, b"data: " + event + b"\n\n")
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes a response
            if await self._sent_error_response(error, scope, receive, send):
                return
            log_failure(error, self._request_id)
            event = error_json(error, self._request_id)
            await self._write(send, b"data: " + event + b"\n\n")
        await self._write(send, _DONE, is_last=True)

    async def _sent_error_response(
        self, error: Exception, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Send an error response unless the headers are sent; return whether it was sent."""
        async with self._send_lock:
            if self._has_started:
                return False
            self._has_started = self._is_finished = True
            await error_response(error, self._request_id)(scope, receive, send)
            return True

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Send comments during long silences; return when the client disconnects."""
        self._last_sent_s = time.monotonic()
        while True:
            silence_s = time.monotonic() - self._last_sent_s
            try:
                async with asyncio.timeout(max(0.01, self._keep_alive_s - silence_s)):
                    message = await receive()
            except TimeoutError:
                if time.monotonic() - self._last_sent_s >= self._keep_alive_s:
                    await self._write(send, _COMMENT)
                continue
            if message["type"] == "http.disconnect":
                return

    async def _write(self, send: Send, body: bytes, *, is_last: bool = False) -> None:
        async with self._send_lock:
            if self._is_finished:
                return
            self._is_finished = is_last
            self._last_sent_s = time.monotonic()
            if not self._has_started:
                self._has_started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    piece = {"type": "http.response.body", "body": body, "more_body": not is_last}
                    await send(piece)
            except TimeoutError:  # the rest need not be held
                logger.warning(
                    "a client read nothing for %g s: closing its connection", READ_TIMEOUT_S
                )
                raise ClientDisconnect from None
