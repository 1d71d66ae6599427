"""Periodic log line with the throughput and load of the engine."""

import asyncio
import logging
import time

from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.dispatch.dispatcher import Done
from quire.messages import EngineStats, ReplicaStats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class StatsLine:
    """Formats the change between two readings of the engine's counters as a log line.

    Args:
        now_s: Time of the first reading, on the monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._done = Done()
        self._num_preemptions = 0

    def next(self, stats: EngineStats, done: Done, now_s: float) -> str | None:
        """Return the line for the time since the last call; None if the engine was idle.

        Args:
            stats: Latest statistics of the engine.
            done: Work that the engine has done since its start.
            now_s: Current time, on the monotonic clock.
        """
        before, self._done = self._done, done
        seconds, self._since_s = now_s - self._since_s, now_s
        num_preemptions = stats.num_preemptions - self._num_preemptions
        self._num_preemptions = stats.num_preemptions
        is_idle = done.num_steps == before.num_steps
        if seconds <= 0 or (is_idle and not stats.num_running and not stats.num_waiting):
            return None
        computed = (done.num_computed_tokens - before.num_computed_tokens) / seconds
        generated = (done.num_generated_tokens - before.num_generated_tokens) / seconds
        usage = stats.num_used_blocks / stats.num_blocks if stats.num_blocks else 0.0
        return (
            f"computed: {computed:.1f} tokens/s, generated: {generated:.1f} tokens/s, "
            f"running: {stats.num_running} reqs, waiting: {stats.num_waiting} reqs, "
            f"KV cache usage: {usage:.1%}, prefix cache hit rate: {stats.prefix_hit_rate:.1%}, "
            f"preemptions: {num_preemptions}{_replica_loads(stats)}"
        )


def _replica_loads(stats: EngineStats) -> str:
    """Return the running and waiting requests of each replica, if there are several."""
    if not stats.replicas:
        return ""
    return f", running+waiting by replica: {' '.join(map(_load, stats.replicas))}"


def _load(replica: ReplicaStats) -> str:
    if not replica.is_up:
        return "down"
    mark = " (silent)" if replica.is_silent else ""
    return f"{replica.num_running}+{replica.num_waiting}{mark}"


async def log_stats(frontend: AsyncFrontend, interval_s: float = INTERVAL_S) -> None:
    """Log a line every `interval_s` seconds, until cancelled."""
    line = StatsLine(time.monotonic())
    while True:
        await asyncio.sleep(interval_s)
        text = line.next(frontend.dispatch.stats, frontend.dispatch.done, time.monotonic())
        if text is not None:
            logger.info(text)
