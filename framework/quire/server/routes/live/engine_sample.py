"""Rates of the engine between two moments, and the view made of them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from quire.messages import BlockMap
from quire.server.observe.readings import EngineReading, Readings
from quire.server.routes.live.engine_view import BlockMapView, EngineView, ReplicaView


@dataclass(frozen=True, slots=True)
class EngineSample:
    """Counters of the engine at one moment.

    Attributes:
        at_s: Time on the monotonic clock.
        num_computed_tokens: Number of computed tokens since the start.
        num_generated_tokens: Number of generated tokens since the start.
        steps: Number of steps of each replica, and their seconds in total.
    """

    at_s: float
    num_computed_tokens: int
    num_generated_tokens: int
    steps: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, readings: Readings, at_s: float) -> "EngineSample":
        """Return the counters now."""
        done = readings.frontend.dispatch.done
        times = [each.metrics.step_s for each in readings.engines()]
        return cls(
            at_s,
            done.num_computed_tokens,
            done.num_generated_tokens,
            tuple((each.count, each.total) for each in times),
        )


@dataclass(frozen=True, slots=True)
class EngineRates:
    """Rates between two samples; those of one sample alone are None.

    Attributes:
        interval_s: Seconds between them.
        computed_tokens_per_s: Computed tokens per second.
        generated_tokens_per_s: Generated tokens per second.
        steps: For each replica, its steps per second, and the mean seconds of one, if any.
    """

    interval_s: float | None = None
    computed_tokens_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    steps: tuple[tuple[float, float | None], ...] = ()

    @classmethod
    def between(cls, before: EngineSample, now: EngineSample) -> "EngineRates":
        """Return the rates between two samples, at different times."""
        seconds = now.at_s - before.at_s
        counts = [
            (count - old_count, total - old_total)
            for (count, total), (old_count, old_total) in zip(now.steps, before.steps, strict=False)
        ]
        return cls(
            seconds,
            (now.num_computed_tokens - before.num_computed_tokens) / seconds,
            (now.num_generated_tokens - before.num_generated_tokens) / seconds,
            tuple((count / seconds, total / count if count else None) for count, total in counts),
        )


def engine_view(
    readings: Readings, rates: EngineRates, maps: Mapping[int, BlockMapView]
) -> EngineView:
    """Return what the engine does now.

    Args:
        readings: Where numbers are read.
        rates: Rates until now.
        maps: Map of the KV blocks of each replica that has reported one, by index.
    """
    stats, done, engines = readings.stats, readings.frontend.dispatch.done, readings.engines()
    return EngineView(
        state=readings.engine_state,
        time=time.time(),
        interval_s=rates.interval_s,
        num_running=sum(each.gauges.num_running for each in engines),
        num_waiting=sum(each.gauges.num_waiting for each in engines),
        num_cached_blocks=stats.num_cached_blocks,
        num_evictions=stats.num_evictions,
        num_steps=done.num_steps,
        num_computed_tokens=done.num_computed_tokens,
        num_generated_tokens=done.num_generated_tokens,
        computed_tokens_per_s=rates.computed_tokens_per_s,
        generated_tokens_per_s=rates.generated_tokens_per_s,
        prefix_hit_rate=stats.prefix_hit_rate,
        replicas=[
            _replica_view(index, each, rates, maps.get(index)) for index, each in enumerate(engines)
        ],
    )


def map_view(found: BlockMap, age_s: float) -> BlockMapView:
    """Return the map of the KV blocks as runs of equal cells."""
    runs: list[int] = []
    for code, cells in groupby(memoryview(found.codes).cast("H")):
        runs += (code, sum(1 for _ in cells))
    return BlockMapView(
        num_blocks=found.num_blocks,
        blocks_per_cell=found.blocks_per_cell,
        runs=runs,
        age_s=age_s,
    )


def _replica_view(
    index: int, engine: EngineReading, rates: EngineRates, found: BlockMapView | None
) -> ReplicaView:
    gauges = engine.gauges
    steps_per_s, step_s = rates.steps[index] if index < len(rates.steps) else (None, None)
    return ReplicaView(
        index=index,
        is_up=gauges.is_up,
        is_silent=gauges.is_silent,
        num_running=gauges.num_running,
        num_waiting=gauges.num_waiting,
        num_blocks=gauges.num_blocks,
        num_used_blocks=gauges.num_used_blocks,
        num_preemptions=gauges.num_preemptions,
        num_prefix_queries=gauges.num_prefix_queries,
        num_prefix_hits=gauges.num_prefix_hits,
        steps_per_s=steps_per_s,
        step_s=step_s,
        block_map=found,
    )
