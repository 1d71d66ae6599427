"""Hub for processes of the same machine: a socket file."""

import itertools
import logging
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from quire.errors import EngineDeadError
from quire.process.hub import Hub, Peer
from quire.process.ipc import decode_frame, encode
from quire.process.local.unix_connection import UnixConnection, UnknownPeerError
from quire.process.local.unix_listener import UnixListener
from quire.process.local.waiting import taken, wait_for

_PEER_BYTES = 4

logger = logging.getLogger(__name__)


class LocalHub(Hub):
    """A hub at a socket file.

    What a socket does not take at once is sent by later calls of any method. The death of a peer
    is no event of the hub: the owner of the processes watches a file descriptor of each.

    Args:
        kind: Type of messages from the peers; any other message is an error.
        address: Address `unix://...` to listen on.

    Raises:
        QuireError: The address cannot be listened on.
    """

    def __init__(self, kind: Any, address: str) -> None:
        self.address = address
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._listener = UnixListener(address)
        self._connections: dict[Peer, UnixConnection] = {}
        self._num_accepted = itertools.count(1)
        self._outgoing: deque[tuple[Peer, Sequence[bytes]]] = deque()
        self._watched: list[int] = []
        self._turn = 0

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._watched.append(fd)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._watched.remove(fd)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message arrives or a watched file descriptor is readable, or until timeout.

        Returns:
            The watched file descriptors that are readable.
        """
        return wait_for([self], self._watched, timeout_s)

    def send(self, peers: Iterable[Peer], message: Any) -> None:
        """Queue one message for some peers; raises as `Hub.send` does."""
        data = encode(message)
        self._outgoing.extend([(peer, self._packets(peer, data)) for peer in peers])
        self._distribute()

    def take(self, timeout_s: float = 0.0) -> tuple[Peer, Any] | None:
        """Return the next message with its sender; raises as `Hub.take` does."""
        found = taken(self._next, self, timeout_s)
        if found is None:
            return None
        peer, data = found
        return peer, decode_frame(self._decoder, data, "another process")

    def drain(self, timeout_s: float) -> None:
        """Wait until the peers have made room for all that was sent."""
        deadline = time.monotonic() + timeout_s
        for connection in self._connections.values():
            connection.drain(deadline)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket, after a time for the peers to make room for what was sent."""
        if linger_s:
            self.drain(linger_s)
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def events(self) -> Mapping[int, int]:
        """Return the file descriptors of the sockets, and what to poll them for."""
        found = {each.fileno(): each.events for each in self._connections.values()}
        return found | {self._listener.fileno(): select.POLLIN}

    def handle(self, fd: int) -> bool:
        """Handle the events of a socket; return whether there is something to take."""
        for peer, connection in self._connections.items():
            if connection.fileno() == fd:
                return self._has_input(peer, connection)
        self._accept()
        return False

    def _has_input(self, peer: Peer, connection: UnixConnection) -> bool:
        connection.flush()
        has_input = connection.has_input()
        if connection.has_ended:
            self._forget(peer, connection)
        return has_input

    def _next(self) -> tuple[Peer, bytes] | None:
        """Return the bytes of the next message, and who sent it, if one is there."""
        self._accept()
        self._distribute()
        for peer, connection in self._in_turn():
            connection.flush()
            if (data := self._received(peer, connection)) is not None:
                return peer, data
        return None

    def _in_turn(self) -> Sequence[tuple[Peer, UnixConnection]]:
        """Return the connections, in each call from the next one on."""
        found = list(self._connections.items())
        self._turn += 1
        first = self._turn % max(1, len(found))
        return found[first:] + found[:first]

    def _received(self, peer: Peer, connection: UnixConnection) -> bytes | None:
        try:
            data = connection.receive()
        except UnknownPeerError as error:
            logger.warning("a connection to %s is closed: %s", self.address, error)
            self._forget(peer, connection)
            return None
        if connection.has_ended:
            self._forget(peer, connection)
        return data

    def _accept(self) -> None:
        while (connection := self._listener.accept()) is not None:
            peer = next(self._num_accepted).to_bytes(_PEER_BYTES, "big")
            self._connections[peer] = connection

    def _forget(self, peer: Peer, connection: UnixConnection) -> None:
        del self._connections[peer]
        connection.close()

    def _packets(self, peer: Peer, data: bytes) -> Sequence[bytes]:
        connection = self._connections.get(peer)
        return () if connection is None else connection.packets(data)

    def _distribute(self) -> None:
        """Send what is queued; packets that were sent when an interrupt came are sent twice."""
        while self._outgoing:
            peer, packets = self._outgoing[0]
            connection = self._connections.get(peer)
            if connection is not None:
                connection.queue(packets)
                connection.flush()
            self._outgoing.popleft()
            if connection is None or not connection.can_send:
                raise EngineDeadError(f"process {peer.hex()} has disconnected")
