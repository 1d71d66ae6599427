"""Delay of the event loop: how late it runs what is due."""

import asyncio
import time

from quire.frontend.metrics.histogram import Histogram

INTERVAL_S = 0.25


async def measure_loop_lag(lag_s: Histogram, interval_s: float = INTERVAL_S) -> None:
    """Observe at intervals how much too late the event loop wakes this task, until cancelled."""
    while True:
        due_s = time.monotonic() + interval_s
        await asyncio.sleep(interval_s)
        lag_s.observe(max(0.0, time.monotonic() - due_s))
