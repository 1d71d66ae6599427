"""Messages between a pair of processes of one machine."""

import logging
import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.errors import EngineDeadError
from quire.process.ipc import decode_frame, encode
from quire.process.local.unix_connection import (
    UnixConnection,
    UnknownPeerError,
    connected_to,
)
from quire.process.local.unix_listener import UnixListener, path_of
from quire.process.local.waiting import taken, wait_for

logger = logging.getLogger(__name__)


class Channel:
    """One end of a pair; sending never blocks, and no message is dropped.

    What the socket does not take at once is sent by later calls of any method.

    Args:
        kind: Type of messages from the other end; any other message is an error.
        address: Address `unix://...` of the socket.
        is_listening: Whether this end listens; the other end connects.

    Raises:
        QuireError: The socket cannot be opened, or no process listens there.
    """

    def __init__(self, kind: Any, address: str, *, is_listening: bool) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._watched: list[int] = []
        self._address = address
        self._is_listening = is_listening
        self._owner_pid = os.getpid()
        self._listener = UnixListener(address) if is_listening else None
        self._connection = None if is_listening else connected_to(path_of(address))

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._watched.append(fd)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._watched.remove(fd)

    @property
    def watched(self) -> Sequence[int]:
        """The watched file descriptors."""
        return self._watched

    @property
    def has_ended(self) -> bool:
        """Whether the other end had connected, and has closed the connection; all is received."""
        return self._connection is not None and self._connection.has_ended

    @property
    def has_unsent(self) -> bool:
        """Whether something waits until the other end has made room."""
        return self._connection is not None and self._connection.has_unsent

    @property
    def is_connected(self) -> bool:
        """Whether the other end has connected, and was not seen to leave."""
        return self._connection is not None and not self._connection.has_ended

    def events(self) -> Mapping[int, int]:
        """Return the file descriptors of the sockets, and what to poll them for."""
        if self._connection is None:
            return {} if self._listener is None else {self._listener.fileno(): select.POLLIN}
        if self._connection.has_ended:
            return {}
        return {self._connection.fileno(): self._connection.events}

    def handle(self, fd: int) -> bool:
        """Handle the events of a socket; return whether `take` has something."""
        if self._connection is None or fd != self._connection.fileno():
            self._accept()
            return False
        self._connection.flush()
        return self._connection.has_input() or self._is_cut_off

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until `take` or a watched file descriptor has something, or until timeout.

        Returns:
            The watched file descriptors that are readable.
        """
        return wait_for([self], self._watched, 0.0 if self._is_cut_off else timeout_s)

    def send(self, message: Any) -> None:
        """Queue a message for the other end; raises as `encode` does.

        Raises:
            EngineDeadError: The other end has disconnected, or not connected yet.
        """
        data = encode(message)
        if self._connection is None:
            raise self._disconnected()
        self._connection.queue(self._connection.packets(data))
        self._connection.flush()
        if not self._connection.can_send:
            raise self._disconnected()

    def take(self, timeout_s: float = 0.0) -> Any:
        """Return the next message; None if none arrives within the timeout.

        Raises:
            EngineDeadError: The other end sent an invalid message; or this end has connected to it,
                and it has disconnected. A listening end watches the process that has connected.
        """
        data = taken(self._next, self, timeout_s)
        return None if data is None else decode_frame(self._decoder, data, "the other process")

    def drain(self, timeout_s: float) -> None:
        """Wait until the other end has made room for all that was sent; a no-op in a fork."""
        if self._connection is not None and os.getpid() == self._owner_pid:
            self._connection.drain(time.monotonic() + timeout_s)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel. May be called twice.

        Args:
            linger_s: Time for the other end to make room for what was sent.
        """
        if linger_s:
            self.drain(linger_s)
        if self._listener is not None:
            self._listener.close()
        if self._connection is not None:
            self._connection.close()

    @property
    def _is_cut_off(self) -> bool:
        """Whether this end has connected to the other one, which has closed the connection."""
        is_connecting = not self._is_listening
        return is_connecting and self._connection is not None and self._connection.has_ended

    def _next(self) -> bytes | None:
        """Return the bytes of the next message, if it is there."""
        if self._connection is None:
            self._accept()
        if self._connection is None:
            return None
        self._connection.flush()
        data = self._received(self._connection)
        if data is not None and self._listener is not None:
            self._listener.close()  # no third process can join the pair
            self._listener = None
        if data is None and self._is_cut_off:
            raise self._disconnected()
        return data

    def _accept(self) -> None:
        if self._listener is not None:
            self._connection = self._listener.accept()

    def _received(self, connection: UnixConnection) -> bytes | None:
        """Return the bytes of a message, if it is there; end a connection of something else."""
        try:
            return connection.receive()
        except UnknownPeerError as error:
            logger.warning("a connection to %s is closed: %s", self._address, error)
            connection.close()
            if self._listener is not None:
                self._connection = None
            return None

    def _disconnected(self) -> EngineDeadError:
        return EngineDeadError(f"the other process has disconnected from {self._address}")
