"""Entrance of a hub for processes on other machines: its port, its encryption and its guard."""

from typing import Any

import zmq

from quire.process.launch_key import LaunchKey
from quire.process.network.connection_guard import ConnectionGuard
from quire.process.network.half_open import HalfOpenConnections, raise_file_limit
from quire.process.network.listening_port import ListeningPort
from quire.process.network.secure_socket import secure_listener
from quire.process.wake_event import WakeEvent


class Entrance:
    """Entrance for the holders of a launch's key.

    Args:
        context: Context of the hub's socket, which `close` terminates.
        socket: The hub's socket.
        port: Port on which it listens from now on.
        key: Key of the launch.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[bytes],
        port: ListeningPort,
        key: LaunchKey,
    ) -> None:
        self._port = port
        secure_listener(socket, key)
        half_open = HalfOpenConnections(port.address.port, raise_file_limit())
        self._guard = ConnectionGuard(context, socket, key, half_open)
        socket.ipv6 = port.address.is_ipv6
        socket.use_fd = port.duplicate()
        socket.bind(str(port.address))

    @property
    def disconnections(self) -> WakeEvent:
        """Event that is set when a connection has ended, and once more later."""
        return self._guard.disconnections

    def stop_listening(self) -> None:
        """Let no more connections be opened; those that are open stay so."""
        self._port.stop()

    def close(self) -> None:
        """Close all of it; the hub's socket must be closed before."""
        self._port.close()
        self._guard.close()
