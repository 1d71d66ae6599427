"""Detection of clients that are gone, among those that have ended their sending side.

A client that has sent its request may shut down its sending side and wait for the response. The
kernel shows the same as of a client that closed its socket: the end of its data. Both differ when
something is sent to them: a closed socket answers with a reset. The kernel reports that as an error
of the connection, for which this waits: no event loop does, as there is nothing left to read.
"""

import asyncio
import select
import sys
from collections.abc import Callable


class PeerWatch:
    """Connections whose peers have ended their side, in one event loop; needs Linux.

    A client is found to be gone when a reset arrives, so its connection must write something.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_gone: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    @property
    def is_supported(self) -> bool:
        """Whether this system can tell both kinds of clients from each other."""
        return sys.platform == "linux"

    def add(self, fileno: int, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once when the connection breaks."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        self._on_gone[fileno] = on_gone
        self._epoll.register(fileno, 0)  # errors and hang-ups are always reported

    def remove(self, fileno: int) -> None:
        """Forget a connection, before its socket is closed."""
        if self._on_gone.pop(fileno, None) is not None and self._epoll is not None:
            self._epoll.unregister(fileno)

    def close(self) -> None:
        """Forget all connections."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._on_gone.clear()

    def _look(self) -> None:
        if self._epoll is None:
            return
        for fileno, _ in self._epoll.poll(0):
            on_gone = self._on_gone.get(fileno)
            self.remove(fileno)
            if on_gone is not None:
                on_gone()
