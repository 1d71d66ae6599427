"""Key for one start of an engine: the user's, or a new one in a file that the engine removes.

The engine locks the file that it has written until it removes it. So another engine that is given
the same file finds out whether the first one still waits for its workers, or was killed.
"""

import fcntl
import os
import socket
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from quire.errors import SettingsError
from quire.process.launch_key import (
    ONE_START,
    STANDARD_INPUT,
    LaunchKey,
    new_private_file,
    no_text,
    present_text,
)

_INPUT_TIMEOUT_S = 30.0
_WRITING_S = 0.5  # time in which another engine writes the file that it has made
_RETRY_S = 0.02


class StartKey:
    """Key for one start of an engine.

    Args:
        path: File of the key, which is written if it does not exist; `-` is standard input; None:
            the key has no file.

    Raises:
        SettingsError: The file or the input has no valid key, the file cannot be written, or it
            has the key of another engine that still waits for its workers.

    Attributes:
        key: The key.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path or STANDARD_INPUT)
        self._written: FileIO | None = None
        if path is None:
            self.key = LaunchKey.new()
        elif str(path) == STANDARD_INPUT:
            self.key = LaunchKey.read(path, _INPUT_TIMEOUT_S)
        else:
            self.key = self._read() or self._write()

    def remove(self) -> None:
        """Remove the file if it was written for this start. May be called twice."""
        if self._written is not None:
            with self._written as file:
                _unlink_same(self._path, file)
            self._written = None

    def _read(self) -> LaunchKey | None:
        """Return the key that the user has made; None if there is none, or none any more.

        A file that an engine has written for itself is removed if that engine is gone.
        """
        deadline = time.monotonic() + _WRITING_S
        while (text := present_text(self._path)) is not None:
            own, is_for_one_start, engine = text.partition(ONE_START)
            if is_for_one_start:
                _remove_left(self._path, engine)
            elif text:
                return LaunchKey.from_text(own, f"the content of {self._path}")
            elif time.monotonic() >= deadline:
                raise no_text(self._path)
            else:
                time.sleep(_RETRY_S)
        return None

    def _write(self) -> LaunchKey:
        key = LaunchKey.new()
        try:
            self._written = new_private_file(self._path)
            _lock(self._written)  # before there is anything to read
            engine = f"process {os.getpid()} on {socket.gethostname()}"
            self._written.write(f"{key.text}{ONE_START}{engine}\n".encode())
        except FileExistsError as error:  # of another engine that starts at this time, or a link
            if (found := self._read()) is not None:
                return found
            raise self._unwritable(error) from error
        except OSError as error:
            self.remove()
            raise self._unwritable(error) from error
        return key

    def _unwritable(self, error: OSError) -> SettingsError:
        return SettingsError(f"the launch key cannot be written to {self._path}: {error}")


def _remove_left(path: Path, engine: str) -> None:
    """Remove a file that an engine has left behind.

    Raises:
        SettingsError: The engine still waits for its workers, or the file cannot be removed.
    """
    try:
        with open(path, "r+b") as file:
            if not _lock(file, fcntl.LOCK_NB):
                raise SettingsError(
                    f"{path} has the launch key of another engine, {engine}, which still waits for "
                    "its workers; give each engine a file of its own, or one that `quire worker "
                    "--new-key FILE` has written to both"
                )
            if ONE_START.encode() in file.read():  # else it is new, and its writer awaits the lock
                _unlink_same(path, file)
    except FileNotFoundError:
        pass  # another engine has removed it
    except OSError as error:
        raise SettingsError(
            f"{path}, which has the launch key of an engine that is gone, cannot be replaced: "
            f"{error}"
        ) from error


def _lock(file: IO[Any], flags: int = 0) -> bool:
    """Lock a file until it is closed; with `LOCK_NB`, False if another engine has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: the last engine has the file
    return True


def _unlink_same(path: Path, file: IO[Any]) -> None:
    """Remove a path if it still leads to an open file; another engine may have replaced it."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            os.unlink(path)
