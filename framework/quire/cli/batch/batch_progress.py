"""Progress of a batch on standard error, and its summary.

On a terminal one line is rewritten twice a second; else a line is written every ten seconds.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from quire.cli.batch.batch_output import BatchOutput

TERMINAL_PERIOD_S = 0.5
LOG_PERIOD_S = 10.0
ERASE = "\r\x1b[K"


class BatchProgress:
    """Shows how far a batch has come.

    Args:
        results: File of its results.
        num_requests: Number of its requests.
        stream: Where to show it; None: nowhere.
        num_tokens: Function that returns the number of tokens that were generated.
    """

    def __init__(
        self,
        results: BatchOutput,
        num_requests: int,
        stream: TextIO | None,
        num_tokens: Callable[[], int] = int,
    ) -> None:
        self._results = results
        self._num_requests = num_requests
        self._stream = stream
        self._num_tokens = num_tokens
        self._is_terminal = stream is not None and stream.isatty()
        self._began_s = time.monotonic()

    async def show(self) -> None:
        """Show the progress until cancelled."""
        period_s = TERMINAL_PERIOD_S if self._is_terminal else LOG_PERIOD_S
        while self._stream is not None:
            await asyncio.sleep(period_s)
            self._write(self.line(), is_last=False)

    def end(self, note: str = "") -> None:
        """Write the summary.

        Args:
            note: What else there is to say.
        """
        self._write(self.summary() + note, is_last=True)

    def line(self) -> str:
        """Return the progress in one line."""
        seconds, num_new = self._seconds, self._num_new
        parts = [f"{self._results.num_done} of {self._num_requests} requests are done"]
        if self._results.num_failed:
            parts.append(f"{self._results.num_failed} failed")
        parts.append(f"{self._num_tokens() / seconds:.0f} tokens/s")
        if num_new:
            left_s = (self._num_requests - self._results.num_done) * seconds / num_new
            parts.append(f"about {_duration(left_s)} left")
        return ", ".join(parts)

    def summary(self) -> str:
        """Return the outcome in one line."""
        results, seconds = self._results, self._seconds
        num_succeeded = results.num_done - results.num_failed
        parts = [
            f"{results.num_done} of {self._num_requests} requests are done: "
            f"{num_succeeded} succeeded, {results.num_failed} failed"
        ]
        if results.num_before:
            parts.append(f"{results.num_before} of them before this run")
        if self._num_new:
            rate = f"{self._num_new / seconds:.2f} requests/s"
            parts.append(
                f"{_duration(seconds)}, {rate}, {self._num_tokens() / seconds:.0f} tokens/s"
            )
        return "; ".join(parts)

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._began_s, 1e-3)

    @property
    def _num_new(self) -> int:
        return self._results.num_done - self._results.num_before

    def _write(self, text: str, *, is_last: bool) -> None:
        if self._stream is None:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            shown = f"quire: {text}\n" if is_last else f"quire: {text}"[:width]
            self._stream.write(ERASE + shown)
        else:
            self._stream.write(f"quire: {text}\n")
        self._stream.flush()


def _duration(seconds: float) -> str:
    """Return a duration in the unit that a person would choose."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
