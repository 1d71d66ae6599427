"""The statistics of replicas are sums; counters of the dead are kept, gauges are not."""

import pytest

from quire.launch.replicas.replica_stats import join_maps, sum_counters, sum_stats
from quire.messages import BlockMap, EngineStats, ReplicaStats

FIRST = EngineStats(
    num_running=1, num_waiting=2, num_scheduled_tokens=3, num_blocks=100, num_used_blocks=5,
    num_cached_blocks=6, num_preemptions=7, num_evictions=8, num_prefix_queries=300,
    num_prefix_hits=10, prefix_hit_rate=0.5, num_store_hits=11, num_grammars_waiting=12,
    num_grammars_compiled=13, grammar_wait_s=1.5,
)  # fmt: skip
SECOND = EngineStats(num_running=4, num_prefix_queries=100, prefix_hit_rate=0.1, num_blocks=50)
FIRST_REPLICA = ReplicaStats(True, 1, 2, False, 100, 5, 7, 300, 10)
SECOND_REPLICA = ReplicaStats(True, 4, 0, False, 50, 0, 0, 100, 0)


def test_every_number_is_a_sum_and_the_rate_is_a_mean():
    total = sum_stats(EngineStats(), [FIRST, SECOND])
    assert (total.num_running, total.num_waiting, total.num_scheduled_tokens) == (5, 2, 3)
    assert (total.num_blocks, total.num_used_blocks, total.num_cached_blocks) == (150, 5, 6)
    assert (total.num_preemptions, total.num_evictions, total.num_store_hits) == (7, 8, 11)
    assert (total.num_prefix_queries, total.num_prefix_hits) == (400, 10)
    assert total.prefix_hit_rate == pytest.approx((0.5 * 300 + 0.1 * 100) / 400)
    assert (total.num_grammars_waiting, total.num_grammars_compiled) == (12, 13)
    assert total.grammar_wait_s == 1.5
    assert total.replicas == [FIRST_REPLICA, SECOND_REPLICA]


def test_of_a_dead_replica_the_counters_remain():
    past = sum_counters([EngineStats(), FIRST])
    total = sum_stats(past, [None, SECOND])
    assert (total.num_running, total.num_blocks) == (4, 50)
    assert (total.num_preemptions, total.num_evictions, total.num_prefix_hits) == (7, 8, 10)
    assert (total.num_prefix_queries, total.num_store_hits) == (400, 11)
    assert (total.num_grammars_waiting, total.num_grammars_compiled) == (0, 13)
    assert total.replicas == [ReplicaStats(False), SECOND_REPLICA]


def test_a_replica_that_may_hang_is_marked_and_counts_with_its_last_statistics():
    total = sum_stats(EngineStats(), [FIRST, SECOND, None], {1})
    assert total.num_running == 5
    assert [each.is_silent for each in total.replicas] == [False, True, False]


def test_without_queries_there_is_no_rate():
    assert sum_stats(EngineStats(), [None]).prefix_hit_rate == 0


def test_maps_of_the_blocks_have_the_index_of_their_replica():
    maps = {2: [BlockMap(0, 8, 1, b"cc")], 0: [BlockMap(0, 4, 1, b"aa")], 1: []}
    assert join_maps(maps) == [BlockMap(0, 4, 1, b"aa"), BlockMap(2, 8, 1, b"cc")]
