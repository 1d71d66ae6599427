"""Lines for a file, written by a thread, so that a slow disk never delays the event loop."""

import contextlib
import logging
import os
import threading
from collections import deque
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_LINES = 65_536  # that wait; further ones are dropped
INTERVAL_S = 0.2
CLOSE_TIMEOUT_S = 2.0


class LineWriter:
    """Appends lines to a file, which is opened again once it was renamed or removed.

    Args:
        path: File to append to; made with mode 0600. None: the standard output.
        max_lines: Number of lines that may wait.

    Attributes:
        num_dropped: Number of lines that were dropped.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path | None, max_lines: int = MAX_LINES) -> None:
        self.num_dropped = 0
        self._path = path
        self._max_lines = max_lines
        self._lines: deque[str] = deque()
        self._descriptor = self._open()
        self._wake = threading.Event()
        self._has_failed = False
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quire-access-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Write a line soon, or drop it if too many wait."""
        if len(self._lines) >= self._max_lines:
            self.num_dropped += 1
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write the lines that wait, within a time limit, and close the file."""
        self._is_closed.set()
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._wake.wait()
            self._is_closed.wait(INTERVAL_S)  # many lines, one write
            self._wake.clear()
            self._write_all()
        self._write_all()
        os.close(self._descriptor)

    def _write_all(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._reopen_if_moved()
            self._write_bytes("".join(lines).encode("ascii", "replace"))
            self._has_failed = False
        except OSError as error:
            self.num_dropped += len(lines)
            if not self._has_failed:  # once, not for each line
                logger.error("the access log cannot be written: %s", error)
            self._has_failed = True

    def _write_bytes(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _open(self) -> int:
        if self._path is None:
            return os.dup(1)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags | os.O_NONBLOCK, 0o600)  # a pipe may have no reader
        os.set_blocking(descriptor, True)
        return descriptor

    def _reopen_if_moved(self) -> None:
        """Open the file again if its name leads to another one, as after a rotation."""
        if self._path is None:
            return
        current = None
        with contextlib.suppress(FileNotFoundError):
            current = self._path.stat()
        own = os.fstat(self._descriptor)
        if current is None or (current.st_dev, current.st_ino) != (own.st_dev, own.st_ino):
            fresh = self._open()
            os.close(self._descriptor)
            self._descriptor = fresh
