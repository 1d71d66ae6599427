"""TCP port on which a hub listens, which can stop listening while its connections go on.

ZeroMQ ends the connections of a port with the port. So the port stays, and the kernel drops every
packet that would open a connection.
"""

import logging
import os
import socket

from quire.errors import QuireError
from quire.process.network.listening_sockets import admit_no_more
from quire.process.network.tcp_address import TcpAddress

logger = logging.getLogger(__name__)

_BACKLOG = 1024  # connections that the system has accepted and ZeroMQ has not


class ListeningPort:
    """A listening port.

    Args:
        address: IP address and port; with the port 0 any that is free.

    Attributes:
        address: The same with the port.

    Raises:
        QuireError: The port cannot be listened on.
    """

    def __init__(self, address: TcpAddress) -> None:
        family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (address.host, address.port), family=family, backlog=_BACKLOG
            )
        except OSError as error:
            raise QuireError(f"a socket cannot be opened at {address}: {error.strerror}") from error
        self.address = TcpAddress(address.host, int(self._socket.getsockname()[1]))

    def duplicate(self) -> int:
        """Return another file descriptor of the port, which the caller closes."""
        return os.dup(self._socket.fileno())

    def stop(self) -> None:
        """Let no more connections be opened, for good."""
        try:
            admit_no_more(self._socket.fileno())
        except OSError as error:
            logger.warning(
                "the port %s stays open, although all workers have joined, because this system "
                "has no packet filters (%s); it admits only those with the launch key",
                self.address,
                error.strerror,
            )

    def close(self) -> None:
        """Close this end of the port."""
        self._socket.close()
