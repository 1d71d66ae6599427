"""Hub: one listening ZeroMQ socket for several processes, each of which has a `Channel`.

    process 0 --\
    process 1 ----> hub        peers are told apart by an id that the socket gives them
    process 2 --/

Messages are numbered for each peer, and a peer drops a number that it has seen. So a broadcast
that is interrupted, as by Ctrl-C, is completed by the next call, and no peer misses or repeats a
message.
"""

import os
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

from quire.errors import EngineDeadError, QuireError
from quire.process.ipc import close_socket, decode_frame, encode

NUMBER_BYTES = 8

Peer = bytes


class Hub:
    """The listening end for several processes; sending never blocks, and no message is dropped.

    Args:
        kind: Type of messages from the peers; any other message is an error.
        address: Address to listen on.
    """

    def __init__(self, kind: Any, address: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._owner_pid = os.getpid()
        # Runs when this object is collected, but not at exit, when a thread may still use it.
        self._finalizer = weakref.finalize(
            self, close_socket, self._socket, self._context, self._owner_pid, 0
        )
        self._finalizer.atexit = False
        self._socket.set_hwm(0)  # no limit: the steps in flight limit the queued messages
        self._socket.router_mandatory = True  # sending to a peer that is gone fails
        # A ZAP domain makes the handshake mandatory; else bytes of any protocol would be accepted.
        self._socket.zap_domain = b"quire"
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._outgoing: deque[tuple[Peer, bytes, bytes]] = deque()
        self._num_sent: dict[Peer, int] = {}
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise QuireError(f"a socket cannot be opened at {address}: {error}") from error

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._poller.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message arrives or a watched file descriptor is readable, or until timeout.

        Returns:
            The watched file descriptors that are readable.
        """
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        return [found for found, _ in self._poller.poll(timeout_ms) if isinstance(found, int)]

    def send(self, peers: Iterable[Peer], message: Any) -> None:
        """Queue one message for some peers, encoded once; raises as `encode` does.

        Raises:
            EngineDeadError: A peer has disconnected; the message of the error has its id.
        """
        data = encode(message)
        self._outgoing.extend([(peer, self._next_number(peer), data) for peer in peers])
        self._flush()

    def take(self, timeout_s: float = 0.0) -> tuple[Peer, Any] | None:
        """Return the next message with its sender; None if none arrives within the timeout.

        Raises:
            EngineDeadError: A peer sent an invalid message.
        """
        if timeout_s and not self._socket.poll(int(timeout_s * 1000)):
            return None
        try:
            peer, frame = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        except ValueError as error:
            raise EngineDeadError("a process sent a message of several frames") from error
        return peer, decode_frame(self._decoder, frame, "another process")

    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket. May be called twice.

        Args:
            linger_s: Time for the peers to read the messages that were sent.
        """
        if self._finalizer.detach() is not None:
            close_socket(self._socket, self._context, self._owner_pid, int(linger_s * 1000))

    def _next_number(self, peer: Peer) -> bytes:
        number = self._num_sent[peer] = self._num_sent.get(peer, 0) + 1
        return number.to_bytes(NUMBER_BYTES, "little")

    def _flush(self) -> None:
        """Send what is queued; a message that was sent when an interrupt came is sent twice."""
        while self._outgoing:
            peer, number, data = self._outgoing[0]
            try:
                self._socket.send_multipart((peer, number, data), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                self._outgoing.popleft()
                raise EngineDeadError(f"process {peer.hex()} has disconnected: {error}") from error
            self._outgoing.popleft()


class HubChannel:
    """The connecting end of a hub, in one of the processes.

    Args:
        kind: Type of messages from the hub; any other message is an error.
        address: Address on which the hub listens.
    """

    def __init__(self, kind: Any, address: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.zap_domain = b"quire"
        self._socket.connect(address)
        self._last_number = 0

    def send(self, message: Any) -> None:
        """Queue a message for the hub; raises as `encode` does."""
        self._socket.send(encode(message))

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message.

        Returns:
            The message; None if none arrives within the timeout.

        Raises:
            EngineDeadError: The hub sent an invalid message.
        """
        while True:
            if timeout_s is not None and not self._socket.poll(int(timeout_s * 1000)):
                return None
            head, frame = self._socket.recv_multipart()
            number = int.from_bytes(head, "little")
            if number > self._last_number:
                self._last_number = number
                break
        return decode_frame(self._decoder, frame, "the engine")

    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel.

        Args:
            linger_s: Time for the hub to read the messages that were sent.
        """
        self._socket.close(int(linger_s * 1000))
        self._context.term()
