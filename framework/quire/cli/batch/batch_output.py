"""The file of a batch's results: one line a request, in the order in which they are complete.

The id of a result is made of the batch's, which is a digest of the requests and the model, and of
the number of the request's line. So the file itself says which requests are done, and whether it
belongs to a batch. A line is written at once; if the process is killed in between, the piece at the
end is cut off when the batch goes on.

Results that are computed again stay until the first new one is there. Then those that are kept are
copied to a file that takes the place of the old one, so that there is a whole file at any moment.
"""

import fcntl
import logging
import os
import stat
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Self

from quire.cli.batch.batch_input import STANDARD, CheckedInput, check_no_url
from quire.cli.batch.batch_lines import BatchResult
from quire.cli.batch.written_results import LineSet, WrittenResults, beside
from quire.errors import BatchFileError

logger = logging.getLogger(__name__)

NEW_MODE = 0o666  # less the umask
SAME = "run the same command again to go on"
OVERWRITTEN = "run it again without --overwrite to go on"


class Existing(Enum):
    """What to do with a file of results that exists."""

    CONTINUE = "continue if it is of the same batch, else refuse"
    RESUME = "the same, and refuse a file that is not there"
    OVERWRITE = "overwrite"
    RETRY = "continue, and compute again what failed and may succeed"


class BatchOutput:
    """The results of a batch, open for more.

    Args:
        file: Unbuffered file, at its end.
        batch_id: Id of the batch.
        done: Numbers of the lines whose results it has.
        num_failed: Number of these that are errors.
        renewed: Function that drops what new results take the place of, and returns the file to go
            on with; called before the first new one. None: all results stay.
        hint: How to go on after an early end; "" if that cannot be.

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
        renewed: Callable[[], BinaryIO] | None = None,
        hint: str = "",
    ) -> None:
        self._file = file
        self._renewed = renewed
        self._hint = hint
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
        file, last = _opened(path, existing), checked.last_number
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or path == STANDARD:
            return cls(file, batch_id, LineSet(last))
        try:
            _lock(file, path)
            if existing is Existing.OVERWRITE:
                renewed = partial(_emptied, file)
                return cls(file, batch_id, LineSet(last), renewed=renewed, hint=OVERWRITTEN)
            retries = existing is Existing.RETRY
            found = WrittenResults(file, path, batch_id, last, retries=retries)
            found.read()
        except BaseException:
            file.close()
            raise
        return cls(
            file,
            batch_id,
            found.done,
            num_failed=found.num_failed,
            renewed=partial(_without_errors, file, path, found) if found.again.size else None,
            hint=SAME,
        )

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

    @property
    def how_to_go_on(self) -> str:
        """What goes on with the batch if it has ended early; "" if nothing does."""
        return self._hint if self._renewed is None or not self._hint else SAME

    def renew(self) -> None:
        """Drop what new results take the place of, if that is still there."""
        if self._renewed is not None:
            self._file, self._renewed = self._renewed(), None

    def append(self, number: int, result: BatchResult) -> None:
        """Write the result of a line."""
        self.renew()
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
    check_no_url(path)
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
        raise _in_use(path) from None
    except OSError as error:
        logger.warning("%s is not locked: its file system has no locks (%s)", path, error.strerror)
    if not Path(path).exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        raise _in_use(path)  # another process has put its file in the place of this one


def _in_use(path: str) -> BatchFileError:
    return BatchFileError(f"{path} is being written by another process")


def _emptied(file: BinaryIO) -> BinaryIO:
    file.truncate(0)
    return file


def _without_errors(file: BinaryIO, path: str, results: WrittenResults) -> BinaryIO:
    """Put a file without the results that are computed again in the place of a file."""
    new, new_path = beside(path, file)
    try:
        _lock(new, str(new_path))
        results.write_done(new)
        os.fsync(new.fileno())
        new_path.replace(Path(path).resolve())
    except BaseException:
        new.close()
        new_path.unlink(missing_ok=True)
        raise
    file.close()
    return new
