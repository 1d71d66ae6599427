"""The log of a command on standard error."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from quire.process.log_lines import log_handler


@contextmanager
def log_to_stderr(level: int) -> Iterator[None]:
    """Print log messages from a level on while the context is open."""
    printer = log_handler()
    printer.setLevel(level)
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    root.addHandler(printer)
    try:
        yield
    finally:
        root.removeHandler(printer)
        root.setLevel(before)
