"""The log of a command on standard error."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def log_to_stderr(level: int) -> Iterator[None]:
    """Print log messages from a level on while the context is open."""
    printer = logging.StreamHandler(sys.stderr)
    printer.setLevel(level)
    printer.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    root.addHandler(printer)
    try:
        yield
    finally:
        root.removeHandler(printer)
        root.setLevel(before)
