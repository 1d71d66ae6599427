"""The file of a batch's results: one line a request, in the order in which they are complete.

The id of a result is made of the batch's, which is a digest of the requests and the model, and of
the number of the request's line. So the file itself says which requests are done, and whether it
belongs to a batch. A line is written at once; if the process is killed in between, the piece at the
end is cut off when the batch goes on.
"""

import fcntl
import logging
import os
import stat
import sys
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from quire.cli.batch.batch_input import STANDARD, CheckedInput
from quire.cli.batch.batch_lines import BatchResult
from quire.errors import BatchFileError

logger = logging.getLogger(__name__)

NEW_MODE = 0o666  # less the umask


class Existing(Enum):
    """What to do with a file of results that exists."""

    CONTINUE = "continue if it is of the same batch, else refuse"
    RESUME = "the same, and refuse a file that is not there"
    OVERWRITE = "overwrite"


class _Written(msgspec.Struct):
    """What is read of a result: more than a prefix, so that a line is known to be whole."""

    id: str
    error: msgspec.Raw = msgspec.Raw(b"null")


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


class BatchOutput:
    """The results of a batch, open for more.

    Args:
        file: Unbuffered file, at its end.
        batch_id: Id of the batch.
        done: Numbers of the lines whose results it has.
        num_failed: Number of these that are errors.
        is_replaced: Whether the first result takes the place of what the file has.

    Attributes:
        num_before: Number of results that it had.
        num_failed: Number of errors among all its results.
    """

    def __init__(
        self,
        file: BinaryIO,
        batch_id: str,
        done: LineSet,
        *,
        num_failed: int = 0,
        is_replaced: bool = False,
    ) -> None:
        self._file = file
        self._is_replaced = is_replaced
        self._batch_id = batch_id
        self._done = done
        self.num_before = done.size
        self.num_failed = num_failed

    @classmethod
    def open(cls, path: str, batch_id: str, checked: CheckedInput, existing: Existing) -> Self:
        """Open a file of results for one process, and cut off what is no whole line.

        Args:
            path: Path of the file; "-" for standard output.
            batch_id: Id of the batch.
            checked: Its requests.
            existing: What to do with a file that exists.

        Raises:
            BatchFileError: It cannot be written, is in use, or has something else.
        """
        file = _opened(path, existing)
        done = LineSet(checked.last_number)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or path == STANDARD:
            return cls(file, batch_id, done)
        try:
            _lock(file, path)
            if existing is Existing.OVERWRITE:
                return cls(file, batch_id, done, is_replaced=True)
            num_failed = _ResultReader(file, path, batch_id, done).read()
        except BaseException:
            file.close()
            raise
        return cls(file, batch_id, done, num_failed=num_failed)

    @property
    def num_done(self) -> int:
        """Number of results that it has."""
        return self._done.size

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def has(self, number: int) -> bool:
        """Return whether it has the result of a line."""
        return number in self._done

    def id_of(self, number: int) -> str:
        """Return the id of a line's result."""
        return f"{self._batch_id}_{number}"

    def append(self, number: int, result: BatchResult) -> None:
        """Write the result of a line."""
        if self._is_replaced:
            self._file.truncate(0)
            self._is_replaced = False
        rest = memoryview(result.line())
        while rest:
            rest = rest[self._file.write(rest) :]
        self._done.add(number)
        self.num_failed += result.error is not None

    def close(self) -> None:
        """Close the file, once its content is on the disk."""
        try:
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def batch_id_of(checked: CheckedInput, model: str) -> str:
    """Return the id of a batch: the same for the same requests to the same model."""
    named = blake2b(f"{checked.digest} {model}".encode(), digest_size=8)
    return f"batch_{named.hexdigest()}"


def _opened(path: str, existing: Existing) -> BinaryIO:
    """Open a file for reading and appending, without changing it.

    Raises:
        BatchFileError: It cannot be written.
    """
    if path == STANDARD:
        sys.stdout.flush()
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    if existing is Existing.RESUME and not Path(path).exists():
        raise BatchFileError(f"there is no {path} to resume; leave --resume out to begin")
    readable = os.O_RDWR if not Path(path).exists() or Path(path).is_file() else os.O_WRONLY
    try:
        descriptor = os.open(path, readable | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, NEW_MODE)
    except OSError as error:
        raise BatchFileError(f"{path} cannot be written: {error.strerror}") from None
    return os.fdopen(descriptor, "r+b" if readable == os.O_RDWR else "wb", buffering=0)


def _lock(file: BinaryIO, path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BatchFileError(f"{path} is being written by another process") from None
    except OSError as error:
        logger.warning("%s is not locked: its file system has no locks (%s)", path, error.strerror)


class _ResultReader:
    """Reads the results that a file has, and cuts off a piece of one at its end."""

    def __init__(self, file: BinaryIO, path: str, batch_id: str, done: LineSet) -> None:
        self._file = file
        self._path = path
        self._prefix = f'{{"id":"{batch_id}_'.encode()
        self._done = done

    def read(self) -> int:
        """Note the finished lines; return the number of errors among them.

        Raises:
            BatchFileError: The file has something else, and was not changed.
        """
        num_failed = num_lines = end = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(0)
            while head := reader.read(len(self._prefix)):
                num_lines += 1
                if not self._prefix.startswith(head):
                    raise self._foreign(num_lines)
                line = head + reader.readline()
                if not line.endswith(b"\n"):
                    break  # the process was killed while it wrote this
                num_failed += self._note(line, num_lines)
                end += len(line)
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
        return num_failed

    def _note(self, line: bytes, number: int) -> bool:
        """Note the line of a result; return whether it is an error."""
        try:
            written = msgspec.json.decode(line, type=_Written)
            of_line = int(written.id.rpartition("_")[2])
        except (msgspec.MsgspecError, ValueError):
            raise self._foreign(number) from None
        if not self._done.add(of_line):
            raise self._foreign(number)
        return bytes(written.error) != b"null"

    def _foreign(self, number: int) -> BatchFileError:
        return BatchFileError(
            f"line {number} of {self._path} is no result of this batch, so the file was left as it "
            "is; name another file, or replace it with --overwrite\n"
            "  A batch goes on only with the same requests and the same model."
        )
