"""The file of a batch's requests, read as a stream: once to check it, and once to compute it."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, NamedTuple, Self

from quire.cli.batch.batch_lines import custom_id_of
from quire.cli.batch.custom_ids import CustomIds
from quire.errors import BatchFileError

STANDARD = "-"
DIGEST_BYTES = 8
PIECE_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_SHOWN = 10  # pairs of equal names in an error


class InputLine(NamedTuple):
    """A line that is not empty.

    Attributes:
        number: Number in the file, from 1 on.
        data: Its bytes; None if they are too many.
    """

    number: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """What is known of an input that was read once.

    Attributes:
        digest: Digest of its bytes, in hexadecimal.
        num_requests: Number of lines that are not empty.
        last_number: Number of the last of these.
    """

    digest: str
    num_requests: int
    last_number: int


class BatchInput:
    """A file of requests, which is never held in memory.

    Args:
        file: The file, which can be read from its beginning again.
        name: Name in messages.
        max_line_bytes: Largest length of a line that is read as a request.
    """

    def __init__(self, file: BinaryIO, name: str, max_line_bytes: int) -> None:
        self._file = file
        self.name = name
        self._max_line_bytes = max_line_bytes
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    @classmethod
    def open(cls, path: str, max_line_bytes: int) -> Self:
        """Open a file, or copy standard input or a pipe into a temporary one.

        Args:
            path: Path of the file; "-" for standard input.
            max_line_bytes: Largest length of a line that is read as a request.

        Raises:
            BatchFileError: It cannot be read.
        """
        if path == STANDARD:
            return cls(_copied(sys.stdin.buffer), "standard input", max_line_bytes)
        check_no_url(path)
        try:
            file = open(path, "rb")  # noqa: SIM115 - open to the end
        except OSError as error:
            raise BatchFileError(f"{path} cannot be read: {error.strerror}") from None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return cls(file, path, max_line_bytes)
        with file:
            return cls(_copied(file), path, max_line_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def is_same_file(self, other: int) -> bool:
        """Return whether another open file is this one."""
        return os.path.samestat(os.fstat(self._file.fileno()), os.fstat(other))

    def check(self) -> CheckedInput:
        """Read the whole file.

        Raises:
            BatchFileError: Two requests have the same name.
        """
        equal: list[str] = []
        num_requests = last_number = 0
        with CustomIds() as names:
            for line in self.lines():
                num_requests, last_number = num_requests + 1, line.number
                name = None if line.data is None else custom_id_of(line.data)
                earlier = None if name is None else names.add(name, line.number)
                if earlier is not None and len(equal) <= MAX_SHOWN:
                    equal.append(f"lines {earlier} and {line.number} both have {name!r}")
        if equal:
            shown = equal[:MAX_SHOWN] + (["..."] if len(equal) > MAX_SHOWN else [])
            raise BatchFileError(
                f"{self.name} has requests with the same custom_id, so nothing was computed:\n  "
                + "\n  ".join(shown)
            )
        return CheckedInput(self._hash.hexdigest(), num_requests, last_number)

    def check_unchanged(self, checked: CheckedInput) -> None:
        """Check that the file was the same when its lines were read again, to the end.

        Raises:
            BatchFileError: It was not.
        """
        if self._hash.hexdigest() != checked.digest:
            raise BatchFileError(
                f"{self.name} was changed while it was computed, so its results may be those of "
                "other requests; compute it again with --overwrite"
            )

    def lines(self) -> Iterator[InputLine]:
        """Yield the lines that are not empty, from the beginning."""
        self._file.seek(0)
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        number = 0
        while data := self._next_line():
            number += 1
            if number == 1 and data[0]:
                data = (data[0].removeprefix(BYTE_ORDER_MARK),)
            if data[0] is None or data[0].strip():
                yield InputLine(number, data[0])

    def _next_line(self) -> tuple[bytes | None] | None:
        """Return the next line, as None if it is too long; without a tuple at the end."""
        piece = self._file.readline(self._max_line_bytes + 1)
        self._hash.update(piece)
        if len(piece) <= self._max_line_bytes or piece.endswith(b"\n"):
            return (piece,) if piece else None
        while piece and not piece.endswith(b"\n"):
            piece = self._file.readline(PIECE_BYTES)
            self._hash.update(piece)
        return (None,)


def _copied(source: BinaryIO) -> BinaryIO:
    """Return a temporary file with what a pipe has, as it is read twice."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - open to the end
    shutil.copyfileobj(source, copy, PIECE_BYTES)
    return copy


def check_no_url(path: str) -> None:
    """Check that a name is that of a file.

    Raises:
        BatchFileError: It is a URL.
    """
    if path.lower().startswith(("http://", "https://")):
        raise BatchFileError(
            f"{path} is a URL, and `quire run-batch` reads and writes files: load the requests "
            "with `curl URL | quire run-batch -i - ...`, and send the file of results at the end"
        )
