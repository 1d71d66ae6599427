"""The file of a batch's results: one line a request, in the order in which they are complete.

The id of a result is made of the batch's, which is a digest of the requests and the model, and of
the number of the request's line. So the file itself says which requests are done, and whether it
belongs to a batch. A line is written at once; if the process is killed in between, the piece at the
end is cut off when the batch goes on.

Results that are computed again stay until the first new one is there. Then those that are kept are
copied to a file that takes the place of the old one, so that there is a whole file at any moment.
"""

import os
import stat
from collections.abc import Callable
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import BinaryIO, Self

from quire.cli.batch.batch_input import STANDARD, CheckedInput
from quire.cli.batch.batch_lines import BatchResult
from quire.cli.batch.result_files import emptied, locked, opened, replaced
from quire.cli.batch.written_results import LineSet, WrittenResults

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
        must_exist, last = existing is Existing.RESUME, checked.last_number
        file = opened(path, must_exist=must_exist)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or path == STANDARD:
            return cls(file, batch_id, LineSet(last))
        try:
            locked(file, path)
            if existing is Existing.OVERWRITE:
                renewed = partial(emptied, file)
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
            renewed=partial(replaced, file, path, found.write_done) if found.again.size else None,
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
