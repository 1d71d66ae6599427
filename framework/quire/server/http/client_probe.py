"""Probes of a client that has ended its sending side: `100 Continue` at intervals.

Every client of HTTP 1.1 skips it, and one that is gone answers by a reset (see `peer_watch`).
"""

import asyncio
from collections.abc import Callable

from quire.server.http.http_exchange import CONTINUE
from quire.server.http.peer_watch import PeerWatch

PROBE_S = 5.0  # between two probes


class ClientProbe:
    """Finds out whether the client of a connection is gone, and aborts the connection then.

    Args:
        transport: Transport of the connection.
        peers: Watch of all such clients.
        takes_probe: Function that returns whether a probe may be written now.
    """

    def __init__(
        self, transport: asyncio.Transport, peers: PeerWatch, takes_probe: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._peers = peers
        self._takes_probe = takes_probe
        self._loop = asyncio.get_running_loop()
        self._fileno: int = transport.get_extra_info("socket").fileno()
        peers.add(self._fileno, transport.abort)
        self._probe()

    def stop(self) -> None:
        """End the probes, before the socket is closed."""
        self._peers.remove(self._fileno)
        self._timer.cancel()

    def _probe(self) -> None:
        if self._takes_probe():
            self._transport.write(CONTINUE)
        self._timer = self._loop.call_later(PROBE_S, self._probe)
