"""Transport of an accepted connection, which reads what has come with it at once.

asyncio's own needs a task, a future and three turns of the event loop before it reads the first
byte. Here a connection whose client wants no more than a refusal is accepted, answered and closed
in one turn, and never registered with the event loop at all. So its cost is bounded where it is
accepted, and a health check is not behind the beginnings of other connections.
"""

import asyncio
import socket
from typing import Any

HIGH_WATER = 64 * 1024  # unsent bytes from which on the protocol is to pause, by default
WATER_RATIO = 4  # of them, to those at which it may go on


class SocketTransport(asyncio.Transport):
    """A connected stream socket in one event loop.

    Its contract is that of asyncio's transport for a `BufferedProtocol`: `connection_lost` is
    called once, in a later turn, and closes the socket afterwards; errors of the socket end the
    connection; `eof_received` decides whether it stays open for writing.

    Args:
        connection: Socket that does not block; closed by the transport.
        protocol: Protocol of the connection.
        peername: Address of the client.
    """

    def __init__(
        self, connection: socket.socket, protocol: asyncio.BufferedProtocol, peername: Any
    ) -> None:
        extra = {
            "socket": connection,
            "peername": peername,
            "sockname": connection.getsockname(),
        }
        super().__init__(extra)
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._fileno = connection.fileno()
        self._protocol = protocol
        self._unsent = bytearray()
        self._high_water, self._low_water = HIGH_WATER, HIGH_WATER // WATER_RATIO
        self._is_reading = True  # as far as the protocol wants it
        self._has_reader = False
        self._has_protocol_paused = False
        self._is_closing = False
        self._is_losing = False  # connection_lost is scheduled, or was called
        self._has_eof = False  # of the sending side

    def start(self) -> None:
        """Tell the protocol of its connection, and read what has come with it."""
        try:
            self._protocol.connection_made(self)
        except BaseException:
            self.abort()
            raise
        if self._is_reading and not self._is_closing:
            self._read()
        self._follow()

    # -- reading -----------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """Whether data is received."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """Receive nothing for now."""
        self._is_reading = False
        self._unfollow()

    def resume_reading(self) -> None:
        """Receive again."""
        self._is_reading = True
        self._follow()

    def _follow(self) -> None:
        """Be called when there is something to read, if it is wanted."""
        if self.is_reading() and not self._has_reader:
            self._has_reader = True
            self._loop.add_reader(self._fileno, self._read)

    def _unfollow(self) -> None:
        if self._has_reader:
            self._has_reader = False
            self._loop.remove_reader(self._fileno)

    def _read(self) -> None:
        try:
            num_bytes = self._socket.recv_into(self._protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        try:
            if num_bytes:
                self._protocol.buffer_updated(num_bytes)
            else:
                self._end_reading()
        except BaseException:
            self.abort()
            raise

    def _end_reading(self) -> None:
        self.pause_reading()
        if not self._protocol.eof_received():
            self.close()

    # -- writing -----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data now, as far as the socket takes it, and the rest when it can.

        Raises:
            RuntimeError: The sending side has ended.
        """
        if self._has_eof:
            raise RuntimeError("the sending side has ended")
        if self._is_losing or not data:
            return
        if self._unsent:
            self._unsent += data
        elif (num_sent := self._send(data)) < len(data) and not self._is_losing:
            self._unsent += memoryview(data)[num_sent:]
            self._loop.add_writer(self._fileno, self._write_on)
        self._pause_protocol()

    def write_eof(self) -> None:
        """End the sending side, once all is sent."""
        if self._is_closing or self._has_eof:
            return
        self._has_eof = True
        if not self._unsent:
            self._shut_down()

    def can_write_eof(self) -> bool:
        """Whether `write_eof` is supported."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the numbers of unsent bytes at which the protocol goes on, and pauses."""
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the numbers of unsent bytes above which the protocol pauses, and at which it goes on.

        Raises:
            ValueError: They are not in this order, or negative.
        """
        if high is None:
            high = HIGH_WATER if low is None else WATER_RATIO * low
        low = high // WATER_RATIO if low is None else low
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._high_water, self._low_water = high, low
        self._pause_protocol()

    def _send(self, data: bytes | bytearray | memoryview) -> int:
        """Return how many bytes the socket takes."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(error)
            return 0

    def _write_on(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if self._is_losing:
            return
        if not self._unsent:
            self._loop.remove_writer(self._fileno)
        if self._has_protocol_paused and len(self._unsent) <= self._low_water:
            self._has_protocol_paused = False
            self._protocol.resume_writing()
        if self._unsent:
            return
        if self._is_closing:
            self._lose(None)
        elif self._has_eof:
            self._shut_down()

    def _pause_protocol(self) -> None:
        if len(self._unsent) > self._high_water and not self._has_protocol_paused:
            self._has_protocol_paused = True
            self._protocol.pause_writing()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    # -- the end -----------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be once all is sent."""
        return self._is_closing

    def close(self) -> None:
        """Receive nothing more, and close the connection once all is sent."""
        self._is_closing = True
        self._unfollow()
        if not self._unsent:
            self._lose(None)

    def abort(self) -> None:
        """Close the connection at once."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if self._is_losing:
            return
        self._is_losing = self._is_closing = True
        self._unfollow()
        if self._unsent:
            self._unsent.clear()
            self._loop.remove_writer(self._fileno)
        self._loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
