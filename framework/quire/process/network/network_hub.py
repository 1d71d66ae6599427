"""Hub for processes on other machines: a TCP port for the holders of the launch's key.

A peer that is silent for 5 s counts as lost. Messages are numbered for each peer, and a peer drops
a number that it has seen. A message whose last frame is empty is dropped, too: it is the rest of
one that an interrupt cut off, or only tries whether the peer is there.
"""

import os
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

from quire.errors import EngineDeadError
from quire.process.hub import Hub, Peer
from quire.process.ipc import decode_frame, encode
from quire.process.launch_key import LaunchKey
from quire.process.network.entrance import Entrance
from quire.process.network.listening_port import ListeningPort
from quire.process.network.secure_socket import ZAP_DOMAIN, pieces
from quire.process.network.tcp_address import TcpAddress

NUMBER_BYTES = 8


class NetworkHub(Hub):
    """A hub at a port.

    Args:
        kind: Type of messages from the peers; any other message is an error.
        address: Address to listen on; with the port 0 any that is free.
        key: Key of the launch.

    Raises:
        SettingsError: The address is unknown or stands for all interfaces.
        QuireError: The address cannot be listened on.
    """

    def __init__(self, kind: Any, address: str, key: LaunchKey) -> None:
        port = ListeningPort(TcpAddress.parse(address).to_listen_on())
        self.address = str(port.address)
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._outgoing: deque[tuple[bytes, ...]] = deque()
        self._is_sending = False
        self._num_sent: dict[Peer, int] = {}
        self._remote_peers: set[Peer] = set()  # that have sent a message
        self._owner_pid = os.getpid()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)  # no limit: the steps in flight limit the queued messages
        self._socket.router_mandatory = True  # sending to a peer that is gone fails
        # A ZAP domain makes the handshake mandatory; else bytes of any protocol would be accepted.
        self._socket.zap_domain = ZAP_DOMAIN
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._entrance = Entrance(self._context, self._socket, port, key)
        self._poller.register(self._entrance.disconnections.fileno(), zmq.POLLIN)
        # Runs when this object is collected, but not at exit, when a thread may still use it.
        self._finalizer = weakref.finalize(
            self, _close, self._socket, self._entrance, self._owner_pid, 0
        )
        self._finalizer.atexit = False

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._poller.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message arrives or a watched file descriptor is readable, or until timeout.

        It also returns when a peer may have been lost, until `lost` is called.
        """
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        found = [found for found, _ in self._poller.poll(timeout_ms) if isinstance(found, int)]
        if self._entrance.disconnections.fileno() in found:
            found.remove(self._entrance.disconnections.fileno())
        return found

    def lost(self) -> list[Peer]:
        """Return the peers whose connection has ended since the last call."""
        if not self._entrance.disconnections.clear():
            return []
        self._socket.get(zmq.EVENTS)  # makes the socket take note of disconnections
        lost = [peer for peer in self._remote_peers if not self._reaches(peer)]
        self._remote_peers.difference_update(lost)
        return lost

    def send(self, peers: Iterable[Peer], message: Any) -> None:
        """Queue one message for some peers; raises as `Hub.send` does."""
        data = encode(message)
        frames = pieces(data)
        self._outgoing.extend([(peer, self._next_number(peer), *frames) for peer in peers])
        self._flush()

    def take(self, timeout_s: float = 0.0) -> tuple[Peer, Any] | None:
        """Return the next message with its sender; raises as `Hub.take` does."""
        if timeout_s and not self._socket.poll(int(timeout_s * 1000)):
            return None
        try:
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._note(peer)
        return peer, decode_frame(self._decoder, b"".join(frames), "another process")

    def stop_listening(self) -> None:
        """Let no more processes on other machines connect; those that are connected stay so."""
        self._entrance.stop_listening()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket, after a time for the peers to read what was sent."""
        if self._finalizer.detach() is not None:
            linger_ms = int(linger_s * 1000)
            _close(self._socket, self._entrance, self._owner_pid, linger_ms)

    def _note(self, peer: Peer) -> None:
        """Note a peer that has sent a message; its connection may have ended already."""
        if peer not in self._remote_peers:
            self._remote_peers.add(peer)
            self._entrance.disconnections.set()

    def _next_number(self, peer: Peer) -> bytes:
        number = self._num_sent[peer] = self._num_sent.get(peer, 0) + 1
        return number.to_bytes(NUMBER_BYTES, "little")

    def _flush(self) -> None:
        """Send what is queued; a message that was sent when an interrupt came is sent twice."""
        while self._outgoing:
            frames = self._outgoing[0]
            try:
                self._send_frames(frames)
            except zmq.ZMQError as error:
                self._outgoing.popleft()
                raise EngineDeadError(
                    f"process {frames[0].hex()} has disconnected: {error}"
                ) from error
            self._outgoing.popleft()

    def _reaches(self, peer: Peer) -> bool:
        """Whether a peer is connected."""
        try:
            self._send_frames((peer, b""))
        except zmq.ZMQError:
            return False
        return True

    def _send_frames(self, frames: Sequence[bytes]) -> None:
        """Send a message, after the end of one that an interrupt cut off."""
        if self._is_sending:
            self._socket.send(b"", zmq.NOBLOCK)
        self._is_sending = True
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:  # of the first frame: the peer is gone
            self._is_sending = False
            raise
        self._is_sending = False


def _close(
    socket: zmq.Socket[bytes],
    entrance: Entrance,
    owner_pid: int,
    linger_ms: int,
) -> None:
    """Close the socket and all that serves it; a no-op in a fork, which cannot use them."""
    if os.getpid() == owner_pid:
        socket.close(linger_ms)
        entrance.close()
