"""Loading progress: a progress bar on a terminal, and one log line at the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def silent(done: int, total: int) -> None:
    """Report no progress."""
    del done, total


@contextmanager
def loading_progress(what: str) -> Iterator[Progress]:
    """Yield a function that reports progress, and log the time at the end.

    Args:
        what: Name of what is loaded.
    """
    start = time.perf_counter()
    totals = [0]

    def note(done: int, total: int) -> None:
        del done
        totals[0] = total

    if sys.stderr.isatty():
        with _bar(what) as show:

            def both(done: int, total: int) -> None:
                note(done, total)
                show(done, total)

            yield both
    else:
        yield note
    LOG.info("loaded %s: %.1f MB in %.2f s", what, totals[0] / 1e6, time.perf_counter() - start)


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
