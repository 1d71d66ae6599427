"""Statistics of several replicas as those of one engine."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from quire.messages import BlockMap, EngineStats, ReplicaStats

NOTHING = EngineStats()


def sum_stats(
    past: EngineStats, current: Sequence[EngineStats | None], silent: Collection[int] = ()
) -> EngineStats:
    """Return the sum over the replicas.

    Args:
        past: Counters of the replicas that died, so that no counter ever decreases.
        current: Latest statistics of each replica; None: it does not take requests.
        silent: Indices of the replicas that may hang.
    """
    up = [stats for stats in current if stats is not None]
    counters = sum_counters([past, *up])
    return EngineStats(
        num_running=sum(stats.num_running for stats in up),
        num_waiting=sum(stats.num_waiting for stats in up),
        num_scheduled_tokens=sum(stats.num_scheduled_tokens for stats in up),
        num_blocks=sum(stats.num_blocks for stats in up),
        num_used_blocks=sum(stats.num_used_blocks for stats in up),
        num_cached_blocks=sum(stats.num_cached_blocks for stats in up),
        num_preemptions=counters.num_preemptions,
        num_evictions=counters.num_evictions,
        num_prefix_queries=counters.num_prefix_queries,
        num_prefix_hits=counters.num_prefix_hits,
        prefix_hit_rate=_mean_hit_rate(up),
        num_store_hits=counters.num_store_hits,
        num_grammars_waiting=sum(stats.num_grammars_waiting for stats in up),
        num_grammars_compiled=counters.num_grammars_compiled,
        grammar_wait_s=counters.grammar_wait_s,
        replicas=[_gauges(stats, is_silent=index in silent) for index, stats in enumerate(current)],
    )


def sum_counters(parts: Iterable[EngineStats]) -> EngineStats:
    """Return the sums of the values that only grow; the others are 0."""
    parts = list(parts)
    return EngineStats(
        num_preemptions=sum(stats.num_preemptions for stats in parts),
        num_evictions=sum(stats.num_evictions for stats in parts),
        num_prefix_queries=sum(stats.num_prefix_queries for stats in parts),
        num_prefix_hits=sum(stats.num_prefix_hits for stats in parts),
        num_store_hits=sum(stats.num_store_hits for stats in parts),
        num_grammars_compiled=sum(stats.num_grammars_compiled for stats in parts),
        grammar_wait_s=sum(stats.grammar_wait_s for stats in parts),
    )


def join_maps(found: Mapping[int, Sequence[BlockMap]]) -> list[BlockMap]:
    """Return the maps of the KV blocks of all replicas, by index.

    Args:
        found: What each replica has returned, by its index.
    """
    return [
        msgspec.structs.replace(each, replica=index)
        for index, maps in sorted(found.items())
        for each in maps
    ]


def _mean_hit_rate(up: Sequence[EngineStats]) -> float:
    """Return the mean of the rates over the last requests, by the tokens looked up."""
    num_queries = sum(stats.num_prefix_queries for stats in up)
    hits = sum(stats.prefix_hit_rate * stats.num_prefix_queries for stats in up)
    return hits / num_queries if num_queries else 0.0


def _gauges(stats: EngineStats | None, *, is_silent: bool) -> ReplicaStats:
    if stats is None:
        return ReplicaStats(is_up=False)
    return ReplicaStats(
        True,
        stats.num_running,
        stats.num_waiting,
        is_silent,
        stats.num_blocks,
        stats.num_used_blocks,
        stats.num_preemptions,
        stats.num_prefix_queries,
        stats.num_prefix_hits,
    )
