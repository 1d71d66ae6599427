"""Results that a file of a batch has: which requests are done, and which may be computed again."""

import os
from typing import BinaryIO

import msgspec

from quire.cli.batch.batch_lines import may_pass
from quire.errors import BatchFileError


class _Response(msgspec.Struct):
    status_code: int


class _Written(msgspec.Struct):
    """What is read of a result: more than a prefix, so that a line is known to be whole."""

    id: str
    response: _Response | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def is_error(self) -> bool:
        """Whether the request failed."""
        return bytes(self.error) != b"null"


class LineSet:
    """Numbers of lines, a bit each.

    Args:
        last: Largest number.
    """

    def __init__(self, last: int) -> None:
        self._bits = bytearray(last // 8 + 1)
        self._last = last
        self.size = 0

    def add(self, number: int) -> bool:
        """Add a number; return whether it may be in the set, and was not."""
        if not 0 < number <= self._last or number in self:
            return False
        self._bits[number // 8] |= 1 << number % 8
        self.size += 1
        return True

    def __contains__(self, number: int) -> bool:
        return bool(self._bits[number // 8] >> number % 8 & 1)


class WrittenResults:
    """Reads the results that a file has, and cuts off a piece of one at its end.

    Args:
        file: The file, open for reading and writing.
        path: Its path.
        batch_id: Id of the batch.
        last_number: Number of the last line of the requests.
        retries: Whether errors that may pass are to be computed again.

    Attributes:
        done: Numbers of the lines whose results stay.
        again: Numbers of the lines that are to be computed again.
        num_failed: Number of errors among the results that stay.
    """

    def __init__(
        self, file: BinaryIO, path: str, batch_id: str, last_number: int, *, retries: bool = False
    ) -> None:
        self._file = file
        self._path = path
        self._prefix = f'{{"id":"{batch_id}_'.encode()
        self._retries = retries
        self._found = LineSet(last_number)
        self.done = LineSet(last_number)
        self.again = LineSet(last_number)
        self.num_failed = 0

    def read(self) -> None:
        """Note the results.

        Raises:
            BatchFileError: The file has something else, and was not changed.
        """
        num_lines = end = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            while head := reader.read(len(self._prefix)):
                num_lines += 1
                if not self._prefix.startswith(head):
                    raise self._foreign(num_lines)
                line = head + reader.readline()
                if not line.endswith(b"\n"):
                    break  # the process was killed while it wrote this
                self._note(line, num_lines)
                end += len(line)
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)

    def write_done(self, target: BinaryIO) -> None:
        """Write the results that stay to another file."""
        with (
            open(self._file.fileno(), "rb", closefd=False) as reader,
            open(target.fileno(), "wb", closefd=False) as writer,
        ):
            reader.seek(0)
            writer.writelines(line for line in reader if self._number_of(line) in self.done)

    def _note(self, line: bytes, number: int) -> None:
        try:
            written = msgspec.json.decode(line, type=_Written)
            of_line = self._number_of(line)
        except (msgspec.MsgspecError, ValueError):
            raise self._foreign(number) from None
        if not self._found.add(of_line):
            raise self._foreign(number)
        if self._retries and written.response and may_pass(written.response.status_code):
            self.again.add(of_line)
            return
        self.done.add(of_line)
        self.num_failed += written.is_error

    def _number_of(self, line: bytes) -> int:
        begin = len(self._prefix)
        return int(line[begin : line.index(b'"', begin)])

    def _foreign(self, number: int) -> BatchFileError:
        return BatchFileError(
            f"line {number} of {self._path} is no result of this batch, so the file was left as it "
            "is; name another file, or replace it with --overwrite\n"
            "  A batch goes on only with the same requests and the same model."
        )
