"""Socket file on which processes of this machine connect."""

import weakref

from quire.errors import QuireError
from quire.process.local.unix_connection import UnixConnection, new_socket

_SCHEME = "unix://"
_BACKLOG = 128


class UnixListener:
    """A listening socket; each process that may open its file may connect.

    Args:
        address: Address `unix://...` of the file, in a folder that only this user may access.

    Raises:
        QuireError: The address cannot be listened on.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = new_socket()
        self._close = weakref.finalize(self, self._socket.close)
        self._socket.setblocking(False)
        try:
            self._socket.bind(path_of(address))
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._close()
            raise QuireError(f"a socket cannot be opened at {address}: {error}") from error

    def fileno(self) -> int:
        """Return the file descriptor that is readable once a process has connected."""
        return self._socket.fileno()

    def accept(self) -> UnixConnection | None:
        """Return the next connection; None if no process has connected.

        Raises:
            QuireError: It cannot be accepted, as for want of file descriptors.
        """
        try:
            return UnixConnection(self._socket.accept()[0])
        except BlockingIOError:
            return None
        except OSError as error:
            raise QuireError(
                f"a connection to {self._address} cannot be accepted: {error}"
            ) from error

    def close(self) -> None:
        """Listen no longer. May be called twice."""
        self._close()


def path_of(address: str) -> str:
    """Return the file of an address."""
    return address.removeprefix(_SCHEME)
