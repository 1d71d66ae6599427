"""HTTP connections with a timeout for the request head and a limit on their number.

See `connection_limit` for what happens before that limit is reached.

uvicorn closes an idle kept-alive connection, but waits without limit for the first request, and for
the rest of a head that has begun. The timeout of the body is in `read_body`.
"""

import asyncio
import logging
import math
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from quire.server.http.connection_limit import connection_limits

logger = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
REPORT_INTERVAL_S = 10.0


class Refusals:
    """Counts the connections that were closed at once, for one line in the log at intervals."""

    def __init__(self) -> None:
        self._num = 0
        self._reported_s = -math.inf

    def note(self, most: int) -> None:
        """Count one, and report all since the last report if that is long ago."""
        self._num += 1
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_INTERVAL_S:
            logger.warning("more than %d open connections: closed %d new ones", most, self._num)
            self._num, self._reported_s = 0, now_s


refusals = Refusals()


class Connection(H11Protocol):
    """A connection that is closed if a request head takes longer than `HEAD_TIMEOUT_S`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request, or close a connection over the limit."""
        super().connection_made(transport)
        most = connection_limits().most
        if len(self.connections) > most:
            refusals.note(most)
            transport.close()
        else:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Cancel the timeout when a request head is complete; restart it when another begins."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
