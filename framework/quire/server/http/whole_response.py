"""HTTP/1.1 responses that are written at once: a status, headers and a body."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from quire.server.wire.retry_after import Header

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class WholeResponse(NamedTuple):
    """A response of which all is known.

    Attributes:
        status: Status.
        headers: Headers, but for the date, the length of the body, and whether to stay connected.
        body: Body.
    """

    status: int
    headers: Sequence[Header]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may stay, as far as the response is concerned."""
        return (b"connection", b"close") not in self.headers

    def encoded(self, date: bytes, *, keep_alive: bool) -> bytes:
        """Return the bytes of the response.

        Args:
            date: Header with the date.
            keep_alive: Whether the connection stays.
        """
        lines = [status_line(self.status), date]
        for name, value in self.headers:
            if name != b"connection":
                lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n" % len(self.body))
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", self.body)
        return b"".join(lines)


def status_line(status: int) -> bytes:
    """Return the first line of a response."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
