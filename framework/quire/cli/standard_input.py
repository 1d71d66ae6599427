"""Standard input, read to its end, with a line on standard error if that takes long."""

import sys
import threading
from typing import TextIO

PATIENCE_S = 2.0


def read_to_end(stdin: TextIO, notice: str, patience_s: float = PATIENCE_S) -> str:
    """Return all of standard input.

    Args:
        stdin: Standard input.
        notice: Line that says what is waited for, and the way out.
        patience_s: Seconds before the line is written.
    """
    timer = threading.Timer(patience_s, _write, [notice])
    timer.daemon = True  # Ctrl-C ends the process while it runs
    timer.start()
    try:
        return stdin.read()
    finally:
        timer.cancel()


def _write(notice: str) -> None:
    print(f"quire: {notice}", file=sys.stderr, flush=True)
