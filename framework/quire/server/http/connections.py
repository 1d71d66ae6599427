"""A connection is closed if a request's head takes too long, or if there are too many of them.

uvicorn closes a kept connection that says nothing, but waits for ever for a first request, and for
one that has begun. The body is `read_body`'s to wait for.
"""

import asyncio
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 4096


class Connection(H11Protocol):
    """A connection whose client must come to the point."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            logger.warning("more than %d connections: closing the newest", MAX_CONNECTIONS)
            transport.close()
        else:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stop the clock when a request's head is complete; start it when another one begins."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
