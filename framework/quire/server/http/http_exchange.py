"""One HTTP request and its response on a connection, as an ASGI application sees them.

What an application sends in one turn of the event loop leaves in one write: the head of a response
waits for the first piece of its body, and pieces are joined. A client that reads too little stops
the application in `send`.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from quire.server.http.whole_response import status_line
from quire.server.wire.http_errors import error_response

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_UNREAD_BYTES = 64 * 1024  # of a body: more are received once the application has read them
MAX_JOINED_BYTES = 64 * 1024  # of a response, before they are written in any case
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCONNECT: Message = {"type": "http.disconnect"}


class Wire(Protocol):
    """The connection, as an exchange uses it."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what is written."""

    def write(self, data: bytes) -> None:
        """Write data."""

    async def drain(self) -> None:
        """Wait until the client has read enough."""

    def resume_reading(self) -> None:
        """Receive more."""

    def pause_reading(self) -> None:
        """Receive nothing for now."""

    def date(self) -> bytes:
        """Return the header with the current date."""

    def finish(self, exchange: "HTTPExchange") -> None:
        """Go on with the next request, or close the connection."""

    def abort(self) -> None:
        """Close the connection at once."""


class HTTPExchange:
    """One request and its response.

    Args:
        wire: Connection.
        scope: ASGI scope of the request.
        keep_alive: Whether the client wants the connection to stay open.

    Attributes:
        has_started: Whether the head of the response was sent.
        is_received: Whether the whole request was received.
    """

    def __init__(self, wire: Wire, scope: Scope, *, keep_alive: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.has_started = False
        self.is_received = False
        self._wire = wire
        self._is_asked = False
        self._body = bytearray()
        self._is_read = False
        self._error: Exception | None = None
        self._is_disconnected = False
        self._is_complete = False
        self._is_chunked = False
        self._num_left: int | None = None  # bytes of the body that the head promised
        self._held: list[bytes] = []
        self._num_held = 0
        self._is_flushing = False
        self._reader: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        scope["quire_exchange"] = self

    @property
    def is_writable(self) -> bool:
        """Whether `send` does not wait: the client reads what is sent."""
        return self._wire.is_writable

    @property
    def is_modern(self) -> bool:
        """Whether the client knows chunks and interim responses."""
        return bool(self.scope["http_version"] == "1.1")

    # -- from the connection ---------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Add a piece of the request's body."""
        if self._is_complete:
            return
        self._body += data
        if len(self._body) > MAX_UNREAD_BYTES:
            self._wire.pause_reading()
        self._wake()

    def feed_end(self) -> None:
        """End the request's body."""
        self.is_received = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """Make the application fail with an error of the body as soon as it reads it."""
        self.keep_alive = False
        self._error = error
        self._wake()

    def disconnect(self) -> None:
        """End the exchange: the client is gone."""
        self._is_disconnected = True
        self._held.clear()
        self._wake()
        if self._worker is not None:
            self._worker.cancel()

    async def run(self, app: ASGIApp) -> None:
        """Run the application; the connection ends if it fails to respond."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:
            if not self._is_disconnected:
                logger.exception("a request failed, and no error response could be sent")
            if not self.has_started and not self._is_disconnected:
                await error_response(error)(self.scope, self.receive, self.send)
        finally:
            if not self._is_complete:
                self._wire.abort()

    # -- for the application ----------------------------------------------------------------------

    async def receive(self) -> Message:
        """Receive the next ASGI message.

        Raises:
            HTTPError: The body is not valid.
        """
        while not (self._is_disconnected or self._is_complete):
            if self._error is not None:
                raise self._error
            if self._body or (self.is_received and not self._is_read):
                return self._next_piece()
            await self._wait_for_data()
        return _DISCONNECT

    async def send(self, message: Message) -> None:
        """Send an ASGI message."""
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message)
            return
        if not self._wire.is_writable:
            await self._wire.drain()
            if self._is_disconnected:
                return
        self._add(message.get("body", b""), is_last=not message.get("more_body", False))

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, or until the client disconnects, which cancels it.

        Raises:
            ClientDisconnect: The client disconnected.
        """
        task = asyncio.current_task()
        if self._is_disconnected or task is None:
            work.close()
            raise ClientDisconnect
        self._worker = task
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_disconnected and task.uncancel() == 0:
                raise ClientDisconnect from None
            raise
        finally:
            self._worker = None

    # -- the request ------------------------------------------------------------------------------

    def _next_piece(self) -> Message:
        body, self._body = bytes(self._body), bytearray()
        self._is_read = self.is_received
        return {"type": "http.request", "body": body, "more_body": not self._is_read}

    async def _wait_for_data(self) -> None:
        if not (self._is_asked or self.has_started) and _waits(self.scope["headers"]):
            self._wire.write(CONTINUE)
        self._is_asked = True
        self._wire.resume_reading()
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- the response -----------------------------------------------------------------------------

    def _start(self, message: Message) -> None:
        if self.has_started:
            raise RuntimeError("the response has started already")
        self.has_started = True
        status = message["status"]
        lines = [status_line(status), self._wire.date()]
        for name, value in message.get("headers", ()):
            if b"\n" in value or b"\r" in value:
                raise RuntimeError(f"the response header {name!r} has a line break")
            if name == b"content-length":
                self._num_left = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            lines += (name, b": ", value, b"\r\n")
        has_body = status not in (204, 304)
        self._is_chunked = has_body and self._num_left is None and self.is_modern
        if self._num_left is None and has_body and not self._is_chunked:
            self.keep_alive = False  # the end of the connection is the end of the body
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._held.append(b"".join(lines))  # until a piece of the body follows

    def _add(self, body: bytes, *, is_last: bool) -> None:
        if not self.has_started or self._is_complete:
            raise RuntimeError("the response has not started, or is complete")
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._num_left is not None:
            self._num_left -= len(body)
            if self._num_left < 0 or (is_last and self._num_left):
                raise RuntimeError("the body of the response has not the length of its header")
        elif self._is_chunked:
            body = _chunk(body, is_last)
        if is_last:
            self._is_complete = True
            self._held.append(body)
            self._flush()
            self._wire.finish(self)
        else:
            self._hold(body)

    def _hold(self, data: bytes) -> None:
        """Keep data for the write at the end of this turn of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._num_held += len(data)
        if self._num_held > MAX_JOINED_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._is_flushing = False
        if self._held and not self._is_disconnected:
            self._wire.write(b"".join(self._held))
        self._held.clear()
        self._num_held = 0


def _chunk(body: bytes, is_last: bool) -> bytes:
    """Return a piece of a body in the chunked transfer coding."""
    end = b"0\r\n\r\n" if is_last else b""
    return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end


def _waits(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a client sends its body only once it is asked to."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
