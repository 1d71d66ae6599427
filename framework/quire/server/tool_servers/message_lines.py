"""Lines of messages, one of which is never kept whole if it is too long; its id is."""

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec

READ_BYTES = 64 * 2**10
_EDGE_BYTES = 256  # kept of the begin and of the end of a line that is too long
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_FIRST_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb'\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_LAST_ID = re.compile(
    rb',\s*"id"\s*:\s*(\d{1,15})\s*(?:,\s*' + _VERSION + rb")?\s*\}\s*\Z"
)  # quotes in a string have a backslash, so this is none of them


class LongLine(msgspec.Struct, frozen=True):
    """A line that is too long.

    Attributes:
        request_id: Number of the request that it responds to, if it is near an end of the line.
    """

    request_id: int | None


async def message_lines(
    stream: asyncio.StreamReader, max_bytes: int
) -> AsyncIterator[bytes | LongLine]:
    """Yield the lines of a stream, without their ends.

    Args:
        stream: The stream.
        max_bytes: Largest size of a line that is kept.
    """
    line = _Line(max_bytes)
    while piece := await stream.read(READ_BYTES):
        *ended, rest = piece.split(b"\n")
        for part in ended:
            line.add(part)
            yield line.take()
        line.add(rest)
    yield line.take()


class _Line:
    """A line that is being read.

    Args:
        max_bytes: Largest size of a line that is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._begin: bytes | None = None  # of a line that is too long

    def add(self, piece: bytes) -> None:
        self._kept += piece
        if self._begin is None and len(self._kept) > self._max_bytes:
            self._begin = bytes(self._kept[:_EDGE_BYTES])
        if self._begin is not None:
            del self._kept[:-_EDGE_BYTES]

    def take(self) -> bytes | LongLine:
        """Return the line, and begin the next one."""
        begin, kept = self._begin, bytes(self._kept)
        self._begin, self._kept = None, bytearray()
        if begin is None:
            return kept
        found = _FIRST_ID.match(begin) or _LAST_ID.search(kept)
        return LongLine(None if found is None else int(found.group(1)))
