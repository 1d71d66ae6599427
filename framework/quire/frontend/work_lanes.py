"""Threads for work on prompts, by its size: long work keeps short work waiting for nothing."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

INLINE_SIZE = 4096  # characters or ids; more of them would block the event loop
LONG_SIZE = 2**17
MIDDLE_THREADS = 2


class WorkLanes:
    """Two lanes of work that is about linear in the size of a text.

    The threads are few: each of them takes time from the event loop and from the engine. What waits
    in a lane is not begun if its caller is cancelled, as when its client disconnects.
    """

    def __init__(self) -> None:
        self._middle = ThreadPoolExecutor(MIDDLE_THREADS, "quire-prompts")
        self._long = ThreadPoolExecutor(1, "quire-long-prompts")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`: here if it is small, else in a thread of its lane.

        Args:
            size: Characters or ids that it works on.
            work: Function to call.
        """
        if size <= INLINE_SIZE:
            return work()
        lane = self._middle if size <= LONG_SIZE else self._long
        return await asyncio.get_running_loop().run_in_executor(lane, work)

    def close(self) -> None:
        """Cancel what waits; what is at work is not waited for."""
        for lane in (self._middle, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
