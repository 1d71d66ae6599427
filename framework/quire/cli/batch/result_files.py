"""Files of results: opened and locked by one process, emptied, and replaced by another file."""

import fcntl
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from quire.cli.batch.batch_input import STANDARD, check_no_url
from quire.errors import BatchFileError

logger = logging.getLogger(__name__)

NEW_MODE = 0o666  # less the umask


def opened(path: str, *, must_exist: bool = False) -> BinaryIO:
    """Open a file for reading and appending, without changing it.

    Args:
        path: Path of the file; "-" for standard output.
        must_exist: Whether to refuse a file that is not there, rather than to begin one.

    Raises:
        BatchFileError: It cannot be written.
    """
    if path == STANDARD:
        sys.stdout.flush()
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    check_no_url(path)
    if must_exist and not Path(path).exists():
        raise BatchFileError(f"there is no {path} to resume; leave --resume out to begin")
    readable = os.O_RDWR if not Path(path).exists() or Path(path).is_file() else os.O_WRONLY
    try:
        descriptor = os.open(path, readable | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, NEW_MODE)
    except OSError as error:
        raise BatchFileError(f"{path} cannot be written: {error.strerror}") from None
    return os.fdopen(descriptor, "r+b" if readable == os.O_RDWR else "wb", buffering=0)


def locked(file: BinaryIO, path: str) -> None:
    """Lock an open file, until it is closed.

    Raises:
        BatchFileError: Another process has it, or has put its own in the place of it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path) from None
    except OSError as error:
        logger.warning("%s is not locked: its file system has no locks (%s)", path, error.strerror)
    if not Path(path).exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        raise _in_use(path)


def emptied(file: BinaryIO) -> BinaryIO:
    """Empty a file, and return it."""
    file.truncate(0)
    return file


def replaced(file: BinaryIO, path: str, write: Callable[[BinaryIO], None]) -> BinaryIO:
    """Put another file in the place of a file, close that, and return the other one, locked.

    There is a whole file at any moment: the old one, or the new one.

    Args:
        file: The file.
        path: Its path; of a link, the file that it leads to is replaced.
        write: Function that writes the other one.
    """
    target = Path(path).resolve()
    path_of_new = target.with_name(f".{target.name}.new")
    new = _made(path_of_new, stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    try:
        locked(new, str(path_of_new))
        write(new)
        os.fsync(new.fileno())
        path_of_new.replace(target)
    except BaseException:
        new.close()
        path_of_new.unlink(missing_ok=True)
        raise
    file.close()
    return new


def _made(path: Path, mode: int) -> BinaryIO:
    """Make an empty file; one that a killed process has left is emptied."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "r+b", buffering=0)


def _in_use(path: str) -> BatchFileError:
    return BatchFileError(f"{path} is being written by another process")
