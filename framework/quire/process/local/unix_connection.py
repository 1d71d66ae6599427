"""One connection between two processes of a machine: whole messages, in order, none twice.

A message is sent in packets of a socket that keeps their boundaries. Packets are numbered, and the
receiver drops a number that it has seen: a packet that was sent when an interrupt came, as by
Ctrl-C, is sent again. A packet that was received when an interrupt came is still in the buffer. So
no message lacks a part; one whose caller was interrupted before it had it is lost as a whole.
"""

import select
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Sequence

from quire.errors import QuireError

PIECE_BYTES = 64 * 1024  # of a message in one packet, less than any socket buffer has
_HEADER = struct.Struct("<4sQI?")  # mark, number, bytes that follow, whether the message goes on
_MARK = b"qu2\n"
_PACKET_BYTES = _HEADER.size + PIECE_BYTES


class UnixConnection:
    """A connected socket; sending never blocks, and no message is dropped.

    Args:
        connected: The socket, of the kind that `connected_to` returns.

    Attributes:
        has_ended: Whether an end is known to have closed the connection, and nothing is left to
            receive.
        can_send: False once an end is known to have closed the connection.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.has_ended = False
        self.can_send = True
        self._socket = connected
        self._close = weakref.finalize(self, connected.close)
        self._num_packets = 0
        self._unsent: deque[bytes] = deque()
        self._buffer = memoryview(bytearray(_PACKET_BYTES))
        _HEADER.pack_into(self._buffer, 0, _MARK, 0, 0, False)
        self._taken = 0, False  # number of the last packet taken, and whether its message goes on
        self._parts: dict[int, bytes] = {}  # by number, of the message that goes on

    def fileno(self) -> int:
        """Return the file descriptor that is readable once a packet or the end has come."""
        return self._socket.fileno()

    @property
    def events(self) -> int:
        """What a poll of the file descriptor should wait for."""
        return select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN

    @property
    def has_unsent(self) -> bool:
        """Whether packets wait until the other end has made room."""
        return bool(self._unsent)

    def packets(self, data: bytes) -> Sequence[bytes]:
        """Cut a message into packets with the next numbers."""
        starts = range(0, max(len(data), 1), PIECE_BYTES)
        return [self._packet(data, start) for start in starts]

    def queue(self, packets: Sequence[bytes]) -> None:
        """Queue packets; those that were queued before are sent twice, and dropped."""
        self._unsent.extend(packets)

    def flush(self) -> None:
        """Send queued packets, as many as the socket takes; none if the other end has closed."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except ConnectionError:  # it has closed
                self.can_send = False
                self._unsent.clear()
                return
            self._unsent.popleft()

    def receive(self) -> bytes | None:
        """Return the next message; None if it is not there yet.

        Raises:
            UnknownPeerError: The other end does not speak this protocol.
        """
        while self._has_packet():
            _, number, size, goes_on = _HEADER.unpack_from(self._buffer)
            if not self._taken[1]:
                self._parts.clear()
            self._parts[number] = bytes(self._buffer[_HEADER.size : _HEADER.size + size])
            message = None if goes_on else b"".join(self._parts.values())
            self._taken = number, goes_on  # what an interrupt stops before is done again
            if message is not None:
                self._parts.clear()
                return message
        return None

    def has_input(self) -> bool:
        """Return whether a packet is there; if the other end has closed, `has_ended` is set."""
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # told once; packets may follow
            return self.has_input()
        if not first:
            self._end()
        return bool(first)

    def drain(self, deadline: float) -> None:
        """Send all queued packets, or as many as the other end takes until a deadline."""
        self.flush()
        poll = select.poll()
        while self._unsent and (left_s := deadline - time.monotonic()) > 0:
            poll.register(self._socket, select.POLLOUT)
            poll.poll(left_s * 1000)
            self.flush()

    def close(self) -> None:
        """Close the connection; what was sent can still be received. May be called twice."""
        self._end()
        self._unsent.clear()
        self._close()

    def _packet(self, data: bytes, start: int) -> bytes:
        self._num_packets += 1
        end = start + PIECE_BYTES
        piece = data[start:end]
        return _HEADER.pack(_MARK, self._num_packets, len(piece), end < len(data)) + piece

    def _has_packet(self) -> bool:
        """Whether a packet that was not taken is in the buffer; if not, the next one is received.

        Raises:
            UnknownPeerError: The other end does not speak this protocol.
        """
        while self._number() <= self._taken[0]:
            if not self._receive_packet():
                return False
        return True

    def _number(self) -> int:
        """Return the number of the packet in the buffer.

        Raises:
            UnknownPeerError: It is none of this protocol.
        """
        mark, number, _, _ = _HEADER.unpack_from(self._buffer)
        if mark != _MARK:
            raise UnknownPeerError(f"a packet begins with {mark!r}")
        return int(number)

    def _receive_packet(self) -> bool:
        """Receive the next packet into the buffer; False if none is there, or none will come.

        Raises:
            UnknownPeerError: It has no header.
        """
        if self.has_ended:
            return False
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # told once; packets may follow
            return self._receive_packet()
        if not size:
            self._end()
        elif size < _HEADER.size:
            raise UnknownPeerError(f"a packet of {size} bytes has no header")
        return size > 0

    def _end(self) -> None:
        self.has_ended, self.can_send = True, False


class UnknownPeerError(QuireError):
    """The other end of a connection does not speak quire's protocol."""

    code = "unknown_peer"


def connected_to(path: str) -> UnixConnection:
    """Connect to a socket file.

    Raises:
        QuireError: No process listens there.
    """
    connected = new_socket()
    try:
        connected.connect(path)
    except OSError as error:
        connected.close()
        raise QuireError(f"the socket {path} cannot be connected to: {error}") from error
    return UnixConnection(connected)


def new_socket() -> socket.socket:
    """Return a socket that keeps the boundaries of packets."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
