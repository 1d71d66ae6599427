"""Messages between two processes: msgpack over a pair of ZeroMQ sockets, without pickle.

ZeroMQ does not report the death of the other process. For that, a `Channel` can watch a file
descriptor, such as a pidfd.
"""

import os
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import zmq

from quire.errors import EngineDeadError, QuireError

T = TypeVar("T")

_UNREADABLE = (msgspec.MsgspecError, QuireError, RecursionError, UnicodeDecodeError)
_UNSENDABLE = (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError)


class UnreadableError(QuireError):
    """Bytes are not a message of the expected type."""

    code = "unreadable_message"


def encode(message: Any) -> bytes:
    """Encode a message as msgpack.

    Raises:
        QuireError: It has a value that msgpack does not support: an unknown type, or a number of
            more than 64 bits.
    """
    try:
        return msgspec.msgpack.encode(message)
    except _UNSENDABLE as error:
        raise QuireError(f"a {type(message).__name__} cannot be sent: {error}") from error


def decode(data: Any, kind: type[T]) -> T:
    """Decode a message.

    Raises:
        UnreadableError: The bytes are not a message of this type.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except _UNREADABLE as error:
        raise UnreadableError(f"a message cannot be decoded: {error}") from error


def decode_frame(decoder: msgspec.msgpack.Decoder[Any], frame: bytes, sender: str) -> Any:
    """Decode a message that a socket has received.

    Raises:
        EngineDeadError: The bytes are not a message of the decoder's type.
    """
    try:
        return decoder.decode(frame)
    except _UNREADABLE as error:
        raise EngineDeadError(
            f"{len(frame)} bytes from {sender} are not a valid message: {error}"
        ) from error


class Channel:
    """One end of a pair of sockets; sending never blocks, and no message is dropped.

    Args:
        kind: Type of messages from the other end; any other message is an error.
        address: Address `ipc://...` of the socket.
        is_listening: Whether this end listens; the other end connects.
    """

    def __init__(self, kind: Any, address: str, *, is_listening: bool) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._owner_pid = os.getpid()
        # Runs when this object is collected, but not at exit, when a thread may still use it.
        self._finalizer = weakref.finalize(
            self, close_socket, self._socket, self._context, self._owner_pid, 0
        )
        self._finalizer.atexit = False
        self._socket.set_hwm(0)  # no limit: the requests in flight limit the queued messages
        self._watched: list[int] = []
        self._poller = zmq.Poller()
        self.register(self._poller)
        # A ZAP domain makes the handshake mandatory; else bytes of any protocol would be accepted.
        self._socket.zap_domain = b"quire"
        try:
            self._socket.bind(address) if is_listening else self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise QuireError(f"a socket cannot be opened at {address}: {error}") from error

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._watched.append(fd)
        self._poller.register(fd, zmq.POLLIN)

    def register(self, poller: zmq.Poller) -> None:
        """Make a poller return when `wait` would."""
        poller.register(self._socket, zmq.POLLIN)
        for fd in self._watched:
            poller.register(fd, zmq.POLLIN)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message arrives or a watched file descriptor is readable, or until timeout.

        Returns:
            The watched file descriptors that are readable.
        """
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        return [found for found, _ in self._poller.poll(timeout_ms) if isinstance(found, int)]

    def send(self, message: Any) -> None:
        """Queue a message for the other end; raises as `encode` does.

        Raises:
            EngineDeadError: This end listens, and the other end has disconnected.
        """
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise EngineDeadError("the other process has disconnected") from error

    def take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message; None if none arrives within the timeout.

        Raises:
            EngineDeadError: The other end sent an invalid message.
        """
        if timeout_s and not self._socket.poll(int(timeout_s * 1000)):
            return None
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return decode_frame(self._decoder, frame, "the other process")

    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel. May be called twice.

        Args:
            linger_s: Time for the other end to read the messages that were sent.
        """
        if self._finalizer.detach() is not None:
            close_socket(self._socket, self._context, self._owner_pid, int(linger_s * 1000))


def close_socket(
    socket: zmq.Socket[bytes], context: zmq.Context[Any], owner_pid: int, linger_ms: int
) -> None:
    """Close a socket and its context; a no-op in a fork, which cannot use them."""
    if os.getpid() == owner_pid:
        socket.close(linger_ms)
        context.term()
