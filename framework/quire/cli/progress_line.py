"""Progress of a start that takes long: one line of a terminal, which is removed at the end.

Commands for a person print no log. If their engine needs more than two seconds, the last message
of the log stands in the terminal's last line.
"""

import logging
import os
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

PATIENCE_S = 2.0
PERIOD_S = 0.2
ERASE = "\r\x1b[K"
SLOW = ("quire.compose.hubs", "quire.native", "quire.worker")  # loggers of what may take long


class ProgressLine(logging.Handler):
    """A context in which the last log message of a start is shown, if it takes long.

    Args:
        message: What is shown before the first log message.
        stream: Where it is shown; nothing is done if that is no terminal, or one that cannot erase.
        patience_s: Seconds before anything is shown.
    """

    def __init__(
        self, message: str, stream: TextIO | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__(logging.INFO)
        self._stream = sys.stderr if stream is None else stream
        self._patience_s = patience_s
        self._message = message
        self._is_shown = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="quire-progress", daemon=True)
        self._levels: dict[logging.Logger, int] = {}

    def __enter__(self) -> Self:
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            for logger in map(logging.getLogger, SLOW):
                self._levels[logger] = logger.level
                logger.setLevel(logging.INFO)  # `quire` keeps its level, which its children have
            logging.getLogger().handlers.insert(0, self)  # before the one that prints
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger().removeHandler(self)
        for logger, level in self._levels.items():
            logger.setLevel(level)
        self._ended.set()
        self.acquire()
        self._erase()
        self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; make room for one that is printed."""
        if record.levelno >= logging.WARNING:
            self._erase()
        else:
            self._message = record.getMessage().partition("\n")[0]

    def _show(self) -> None:
        started = time.monotonic()
        wait_s = self._patience_s
        while not self._ended.wait(wait_s):
            wait_s = PERIOD_S
            self.acquire()
            if not self._ended.is_set():
                self._draw(time.monotonic() - started)
            self.release()

    def _draw(self, seconds: float) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(ERASE + f"{seconds:.0f} s: {self._message}"[:width])
        self._stream.flush()
        self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown:
            self._stream.write(ERASE)
            self._stream.flush()
            self._is_shown = False
