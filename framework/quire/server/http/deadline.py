"""A deadline of a connection, which moves with each of its requests."""

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """A time at which something is called, cheap to move.

    Args:
        loop: Event loop.
        on_end: Function to call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """Move it; the timer stays as it is if it fires before."""
        self._at_s = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= self._at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._look)

    def clear(self) -> None:
        """Call nothing until it is set again."""
        self._at_s = math.inf

    def cancel(self) -> None:
        """End it for good."""
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        left_s = self._at_s - self._loop.time()
        if left_s <= 0:
            self._on_end()
        elif left_s < math.inf:
            self._timer = self._loop.call_later(left_s, self._look)
