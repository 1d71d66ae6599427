"""One HTTP/1.1 connection of the load generator, kept open from request to request.

Replies are parsed by httptools where they arrive, without tasks or streams: reading one token costs
a few microseconds.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import httptools

MAX_ERROR_BYTES = 4096


class BodyReader(Protocol):
    """Reader of a streamed body."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Read bytes that arrived at a time."""


class HTTPReply:
    """A reply that is being received.

    Args:
        reader: Reads the body of a reply with status 200; None: it is collected.

    Attributes:
        status: Status code; 0 before it arrived.
        body: Body as far as it was not read by the reader.
        whole: Result once the reply is complete, or a `ConnectionError`.
    """

    def __init__(self, reader: BodyReader | None) -> None:
        self.reader = reader
        self.status = 0
        self.body = b""
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class HTTPConnection(asyncio.Protocol):
    """A connection that carries one request at a time.

    Args:
        clock: Clock of the arrival times.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: HTTPReply | None = None
        self._now_s = 0.0
        self.is_open = False

    async def exchange(self, request: bytes, reply: HTTPReply) -> None:
        """Send a request, and wait for the end of its reply.

        Raises:
            ConnectionError: The connection ended before the reply did.
        """
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the connection is closed")
        self._reply = reply
        self._transport.write(request)
        try:
            await reply.whole
        finally:
            self._reply = None

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._now_s = self._clock()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:  # ValueError: of the reader
            self._fail(ConnectionError(f"the reply cannot be read: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self.is_open = False
        reason = error or "the server closed the connection"
        self._fail(ConnectionResetError(str(reason)))

    def on_status(self, reason: bytes) -> None:
        """Called by httptools."""
        del reason
        if self._reply is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Called by httptools."""
        reply = self._reply
        if reply is None:
            return
        if reply.reader is not None and reply.status == 200:
            reply.reader.feed(body, self._now_s)
        elif len(reply.body) < MAX_ERROR_BYTES or reply.reader is None:
            reply.body += body

    def on_message_complete(self) -> None:
        """Called by httptools."""
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._reply is not None and not self._reply.whole.done():
            self._reply.whole.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.whole.done():
            self._reply.whole.set_exception(error)
