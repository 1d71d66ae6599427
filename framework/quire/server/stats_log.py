"""Periodic log line with the throughput and load of the engine, also for plugins."""

import asyncio
import logging
import time
from collections.abc import Sequence

from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.dispatch.dispatcher import Done
from quire.frontend.intake.request_hooks import RequestHook
from quire.messages import EngineStats, IntervalStats, ReplicaStats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class Intervals:
    """Measures the load between two readings of the engine's counters.

    Args:
        now_s: Time of the first reading, on the monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._done = Done()
        self._num_preemptions = 0

    def next(self, stats: EngineStats, done: Done, now_s: float) -> IntervalStats | None:
        """Return the load since the last call; None if the engine was idle.

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
        return IntervalStats(
            duration_s=seconds,
            num_steps=done.num_steps - before.num_steps,
            num_computed_tokens=done.num_computed_tokens - before.num_computed_tokens,
            num_generated_tokens=done.num_generated_tokens - before.num_generated_tokens,
            num_preemptions=num_preemptions,
            engine=stats,
        )


def line_of(interval: IntervalStats) -> str:
    """Return the load of an interval as a line for the log."""
    stats, seconds = interval.engine, interval.duration_s
    usage = stats.num_used_blocks / stats.num_blocks if stats.num_blocks else 0.0
    return (
        f"computed: {interval.num_computed_tokens / seconds:.1f} tokens/s, "
        f"generated: {interval.num_generated_tokens / seconds:.1f} tokens/s, "
        f"running: {stats.num_running} reqs, waiting: {stats.num_waiting} reqs, "
        f"KV cache usage: {usage:.1%}, prefix cache hit rate: {stats.prefix_hit_rate:.1%}, "
        f"preemptions: {interval.num_preemptions}{_replica_loads(stats)}"
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


async def log_stats(
    frontend: AsyncFrontend,
    interval_s: float = INTERVAL_S,
    hooks: Sequence[RequestHook] = (),
) -> None:
    """Log a line every `interval_s` seconds with work, and call the plugins, until cancelled.

    Args:
        frontend: Frontend, which has the statistics.
        interval_s: Length of an interval, in seconds.
        hooks: The plugins' `stats_logged`; their errors are logged.
    """
    intervals = Intervals(time.monotonic())
    while True:
        await asyncio.sleep(interval_s)
        dispatch = frontend.dispatch
        interval = intervals.next(dispatch.stats, dispatch.done, time.monotonic())
        if interval is not None:
            logger.info("%s", line_of(interval))
            _call_plugins(hooks, interval)


def _call_plugins(hooks: Sequence[RequestHook], interval: IntervalStats) -> None:
    for source, hook in hooks:
        try:
            hook(stats=interval)
        except Exception:  # a plugin's error, which must not end the log
            logger.exception("plugin %s failed in stats_logged", source)
