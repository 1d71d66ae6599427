"""Acceptance of connections on a listening socket, in one event loop.

asyncio's own acceptance logs a traceback for each connection that finds no free descriptor, and
tries again at once. This one logs one line in an interval and pauses: the connections wait in the
kernel's queue until others have ended. On Linux, accept(2) also reports what broke a connection in
that queue: that is one line in an interval too, and the next connection is accepted.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable

from quire.server.http.refusals import Refusals
from quire.server.http.socket_transport import SocketTransport

BACKLOG = 2048
MAX_AT_ONCE = 64  # connections accepted in one turn of the event loop, which lasts as long
MAX_TURN_S = 0.005  # as that at most, but for the last connection of the turn
WAY_S = 0.002  # in which another process accepts, if it can
PAUSE_S = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BROKEN_NAMES = {  # of which not every system has all
    "EPROTO",
    "EHOSTUNREACH",
    "EHOSTDOWN",
    "ENETDOWN",
    "ENETUNREACH",
    "ENONET",
    "ENOPROTOOPT",
    "EOPNOTSUPP",
    "ETIMEDOUT",
    "ENOTSUP",
    "ECONNABORTED",
    "EPERM",
}
_BROKEN = frozenset(code for code, name in errno.errorcode.items() if name in _BROKEN_NAMES)


class Acceptor:
    """Accepts connections and gives each a protocol.

    Args:
        listener: Bound socket; it listens from `start` on, and `stop` closes it.
        make_protocol: Function that makes the protocol of a connection.
        refusals: Log of exhausted descriptors.
        gives_way: Returns whether another process that accepts from the same socket shall come
            first; None: there is none.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BufferedProtocol],
        refusals: Refusals,
        gives_way: Callable[[], bool] | None = None,
    ) -> None:
        self.listener = listener
        self._gives_way = gives_way
        self._make_protocol = make_protocol
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._resumption: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen."""
        self.listener.setblocking(False)
        self.listener.listen(BACKLOG)
        self._resume()

    def stop(self) -> None:
        """Accept no more, and close the listening socket."""
        if self._resumption is None:
            self._loop.remove_reader(self.listener.fileno())
        else:
            self._resumption.cancel()
        self.listener.close()

    def _resume(self) -> None:
        self._resumption = None
        self._loop.add_reader(self.listener.fileno(), self._accept)

    def _accept(self) -> None:
        if self._gives_way is None:
            self._accept_some(MAX_AT_ONCE)
        elif self._gives_way():
            self._wait(WAY_S, self._accept_late)
        else:
            self._accept_some(1)

    def _accept_late(self) -> None:
        """Accept a connection that no other process has taken meanwhile."""
        self._resume()
        self._accept_some(1)

    def _accept_some(self, num: int) -> None:
        end_s = time.monotonic() + MAX_TURN_S
        for _ in range(num):
            try:
                connection, peername = self.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _BROKEN:
                    self._note_broken(error)
                    continue
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            self._begin(connection, peername)
            if time.monotonic() > end_s:
                return

    def _note_broken(self, error: OSError) -> None:
        line = f"a connection broke before it was accepted: {error.strerror} ({{num}} of them)"
        self._refusals.note("broken", line)

    def _pause(self, error: OSError) -> None:
        self._refusals.note(
            "exhausted",
            f"no connection can be accepted: {error.strerror}; new ones wait until others end "
            "({num} attempts failed)",
        )
        self._wait(PAUSE_S, self._resume)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self.listener.fileno())
        self._resumption = self._loop.call_later(seconds, then)

    def _begin(self, connection: socket.socket, peername: object) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        SocketTransport(connection, self._make_protocol(), peername).start()
