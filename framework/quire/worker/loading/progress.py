"""Loading progress: a bar on a terminal if it takes long, and one log line at the end."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def silent(done: int, total: int) -> None:
    """Report no progress."""
    del done, total


@contextmanager
def loading_progress(what: str, patience_s: float = PATIENCE_S) -> Iterator[Progress]:
    """Yield a function that reports progress, and log the time at the end.

    Args:
        what: Name of what is loaded.
        patience_s: Seconds before a terminal shows a bar.
    """
    start, total = time.perf_counter(), 0
    show: Progress | None = None
    with ExitStack() as stack:
        has_bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

        def note(done: int, total_bytes: int) -> None:
            nonlocal show, total
            total = total_bytes
            if show is None and has_bar and time.perf_counter() - start >= patience_s:
                show = stack.enter_context(_bar(what))
            if show is not None:
                show(done, total_bytes)

        yield note
    logger.info("loaded %s: %.1f MB in %.2f s", what, total / 1e6, time.perf_counter() - start)


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show
