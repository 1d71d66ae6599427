"""TCP proxy between a peer and a hub that records, repeats and changes what the peer sends."""

import socket
import threading
from contextlib import contextmanager, suppress


class RecordingProxy:
    """A proxy for one connection; closing it breaks the connection.

    Args:
        port: Port of the hub on this machine.

    Attributes:
        address: Address for the peer.
        recorded: Chunks that the peer has sent.
    """

    def __init__(self, port):
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.recorded = []
        self._hub = self._peer = None
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def send(self, data):
        """Send bytes to the hub in the name of the peer."""
        self._hub.sendall(data)

    def close(self):
        """Break the connection."""
        for connection in (self._server, self._peer, self._hub):
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()

    def _accept(self):
        """Accept the connection by which the peer looks who listens, and then the one to keep."""
        with suppress(OSError):  # it was closed before a peer came
            with self._connected() as (peer, hub):
                _copy_both_ways(peer, hub, [])
            with self._connected() as (self._peer, self._hub):
                _copy_both_ways(self._peer, self._hub, self.recorded)

    @contextmanager
    def _connected(self):
        """Return the connection of a peer, and one to the hub."""
        peer, _ = self._server.accept()
        with peer, socket.create_connection(("127.0.0.1", self._port)) as hub:
            yield peer, hub


def _copy_both_ways(peer, hub, recorded):
    back = threading.Thread(target=_copy, args=(hub, peer, []))
    back.start()
    _copy(peer, hub, recorded)
    back.join()


def _copy(source, target, recorded):
    with suppress(OSError):
        while data := source.recv(65536):
            recorded.append(data)
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
