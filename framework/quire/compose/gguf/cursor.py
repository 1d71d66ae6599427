"""Reading of the numbers and texts in a GGUF header, each compared with the bytes that are left."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from quire.errors import CheckpointCorruptError

MAX_HEADER_BYTES = 2**28
MAX_STRING_BYTES = 2**24
MAX_NAME_BYTES = 1024  # of keys and names of tensors


def mapped_header(file: Path) -> mmap.mmap:
    """Map the first bytes of a file, which is not empty, to memory."""
    with file.open("rb") as stream:
        size = min(file.stat().st_size, MAX_HEADER_BYTES)
        return mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)


def damaged(file: Path, why: str) -> CheckpointCorruptError:
    """Return the error of a damaged file."""
    return CheckpointCorruptError(f"{str(file)!r} is damaged: {why}")


class Cursor:
    """A position in the bytes of a header."""

    def __init__(self, file: Path, data: mmap.mmap, position: int) -> None:
        self.file = file
        self._data = data
        self.position = position

    def number(self, code: str, what: str) -> Any:
        """Read one number."""
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), what))[0]

    def numbers(self, code: str, count: int, what: str) -> list[Any]:
        """Read several numbers."""
        size = count * struct.calcsize(f"<{code}")
        return list(struct.unpack(f"<{count}{code}", self._take(size, what)))

    def count(self, what: str, most: int) -> int:
        """Read a number of things, each of which takes at least a byte of the file."""
        count: int = self.number("Q", f"the number of {what}")
        if count > most:
            raise damaged(self.file, f"it claims {count} {what}, and the limit is {most}")
        if count > self._left:
            raise damaged(self.file, f"it claims {count} {what} in the {self._left} bytes left")
        return count

    def name(self, what: str) -> str:
        """Read a key or a name."""
        return self.string(what, MAX_NAME_BYTES)

    def string(self, what: str, most: int = MAX_STRING_BYTES) -> str:
        """Read a text of at most so many bytes."""
        content = self._take(self._string_bytes(what, most), what)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"{what} is not UTF-8 ({error})") from error

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over several texts."""
        for _ in range(count):
            self.skip(self._string_bytes(what, MAX_STRING_BYTES), what)

    def skip(self, size: int, what: str) -> None:
        """Pass over bytes."""
        if size > self._left:
            raise self._too_short(size, what)
        self.position += size

    @property
    def _left(self) -> int:
        return len(self._data) - self.position

    def _string_bytes(self, what: str, most: int) -> int:
        size: int = self.number("Q", what)
        if size > most:
            raise damaged(self.file, f"{what} claims {size} bytes, and the limit is {most}")
        return size

    def _take(self, size: int, what: str) -> bytes:
        if size > self._left:
            raise self._too_short(size, what)
        start, self.position = self.position, self.position + size
        return self._data[start : self.position]

    def _too_short(self, size: int, what: str) -> CheckpointCorruptError:
        if len(self._data) == MAX_HEADER_BYTES:
            return damaged(self.file, f"its header is longer than {MAX_HEADER_BYTES} bytes")
        return damaged(
            self.file,
            f"it ends within {what}, of {size} bytes at position {self.position}; is the copy "
            "complete?",
        )
