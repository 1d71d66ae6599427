"""Messages between processes: msgpack over one ZeroMQ pair of sockets. Nothing is ever pickled.

ZeroMQ does not say when the other side dies: whoever waits on a `Channel` lets it watch a file
descriptor that does.
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
    """Bytes are no message of the kind that was expected."""

    code = "unreadable_message"


def encode(message: Any) -> bytes:
    """Return a message as msgpack.

    Raises:
        QuireError: It holds what msgpack cannot carry: a foreign type, or a number of over 64 bits.
    """
    try:
        return msgspec.msgpack.encode(message)
    except _UNSENDABLE as error:
        raise QuireError(f"a {type(message).__name__} cannot be sent: {error}") from error


def decode(data: Any, kind: type[T]) -> T:
    """Return the message in some bytes.

    Raises:
        UnreadableError: They hold none of this kind.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except _UNREADABLE as error:
        raise UnreadableError(f"no message can be read: {error}") from error


class Channel:
    """One end of a pair of sockets; sending never waits, and nothing is dropped.

    Args:
        kind: What the other end may say; anything else ends the conversation.
        address: An `ipc://` address.
        is_listening: One end listens, the other one connects.
    """

    def __init__(self, kind: Any, address: str, *, is_listening: bool) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._owner_pid = os.getpid()
        # When the last one who knows it forgets it; at the exit a thread may still use it.
        self._finalizer = weakref.finalize(
            self, _hang_up, self._socket, self._context, self._owner_pid, 0
        )
        self._finalizer.atexit = False
        self._socket.set_hwm(0)  # the requests in flight bound what can be queued
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        # With a domain the handshake is not optional; else any bytes would be the first protocol's.
        self._socket.zap_domain = b"quire"
        try:
            self._socket.bind(address) if is_listening else self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise QuireError(f"no socket can be had at {address}: {error}") from error

    def watch(self, fd: int) -> None:
        """Let `wait` return when a file descriptor becomes readable, too."""
        self._poller.register(fd, zmq.POLLIN)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message or a watched file descriptor is there, or the time is up.

        Returns:
            The watched file descriptors that are readable.
        """
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        return [found for found, _ in self._poller.poll(timeout_ms) if isinstance(found, int)]

    def send(self, message: Any) -> None:
        """Queue a message for the other end; raises as `encode` does.

        Raises:
            EngineDeadError: This end listens, and nobody is connected any more.
        """
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise EngineDeadError("the other process has hung up") from error

    def take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message; None if there is none within the time.

        Raises:
            EngineDeadError: What came is no message.
        """
        if timeout_s and not self._socket.poll(int(timeout_s * 1000)):
            return None
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            return self._decoder.decode(frame)
        except _UNREADABLE as error:
            raise EngineDeadError(
                f"{len(frame)} bytes came from the other process that are no message: {error}"
            ) from error

    def close(self, linger_s: float = 0.0) -> None:
        """Hang up. May be called twice.

        Args:
            linger_s: How long to wait for the other end to read what was sent.
        """
        if self._finalizer.detach() is not None:
            _hang_up(self._socket, self._context, self._owner_pid, int(linger_s * 1000))


def _hang_up(
    socket: zmq.Socket[bytes], context: zmq.Context[Any], owner_pid: int, linger_ms: int
) -> None:
    """Give everything back; in a fork of the one that opened it, nothing of it can be used."""
    if os.getpid() == owner_pid:
        socket.close(linger_ms)
        context.term()
