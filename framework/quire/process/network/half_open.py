"""Accepted connections that have not authenticated themselves, of which there is a limited number.

Each uses a file descriptor of the process, which has other use for them. A holder of the key is
done with the handshake within milliseconds. So when there are too many, the oldest are closed.
"""

import resource
import socket
import struct
from contextlib import suppress

from quire.process.network.listening_sockets import duplicate_socket

_MAX_CONNECTIONS = 1000
_SHARE = 8  # an eighth of the file descriptors that the process may have
_BYTES_RECEIVED = struct.Struct("128x Q")  # of struct tcp_info
# Of ZeroMQ's CURVE handshake (RFC 26): greeting, HELLO, and the least of INITIATE. A stranger comes
# no further than HELLO, which is encrypted for the holder of the listener's key.
_HANDSHAKE_BYTES = 64 + (2 + 200) + (2 + 256)


def raise_file_limit() -> int:
    """Let this process have as many files as it may; return the half-open connections it allows.

    A burst of connections is over before all of them can be closed, and needs room until then.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    is_unlimited = most == resource.RLIM_INFINITY
    return _MAX_CONNECTIONS if is_unlimited else min(_MAX_CONNECTIONS, most // _SHARE)


class HalfOpenConnections:
    """Connections of one port from the time they are accepted.

    Args:
        port: The port.
        limit: Largest number of them.
    """

    def __init__(self, port: int, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._fds: dict[int, None] = {}  # the oldest first

    def add(self, fd: int) -> None:
        """Add a connection; if there are too many, the oldest that is not authenticated ends."""
        self._fds.pop(fd, None)
        self._fds[fd] = None
        while len(self._fds) > self._limit:
            oldest = next(iter(self._fds))
            del self._fds[oldest]
            with suppress(OSError):  # it has ended meanwhile
                _end_half_open(oldest, self._port)

    def remove(self, fd: int) -> None:
        """Remove a connection that has ended."""
        self._fds.pop(fd, None)


def _end_half_open(fd: int, port: int) -> None:
    """End a connection of a port unless it is authenticated; ZeroMQ then closes it.

    Raises:
        OSError: The descriptor is no longer one of a connection.
    """
    with duplicate_socket(fd) as connection:
        is_of_port = connection.getsockname()[1] == port  # the number may be another file's by now
        if is_of_port and _num_received(connection) < _HANDSHAKE_BYTES:
            connection.shutdown(socket.SHUT_RDWR)


def _num_received(connection: socket.socket) -> int:
    """Return the number of bytes that a TCP connection has received."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    return int(_BYTES_RECEIVED.unpack(info)[0])
