"""Loads of replicas: the least loaded in turn, and the warm-up of one that starts beside others."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.launch.replicas.routing.replica_loads import WARM_UP_S, ReplicaLoads


def loads_of(*tokens):
    loads = ReplicaLoads(len(tokens))
    for replica in range(len(tokens)):
        loads.start(replica, 0.0)
    for replica, count in enumerate(tokens):
        loads.add(replica, count)
    return loads


def test_a_replica_that_is_down_is_never_chosen():
    loads = loads_of(5, 7, 9)
    loads.stop(0)
    assert loads.least() == 1
    assert loads.counted(0) == math.inf
    assert not loads.is_up(0)
    assert {loads.next_up() for _ in range(6)} == {1, 2}
    assert loads.num_up == 2


def test_among_equals_each_is_chosen_in_turn():
    loads = loads_of(3, 3, 3)
    assert [loads.least() for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_silent_replica_is_chosen_only_if_all_are():
    loads = loads_of(1, 500, 7)
    loads.mark_silent(0, is_silent=True, now_s=0.0)
    loads.add(0, 3)
    assert [loads.least(), loads.least_of([0, 1])] == [2, 1]
    assert {loads.next_up() for _ in range(6)} == {1, 2}
    for replica in (1, 2):
        loads.mark_silent(replica, is_silent=True, now_s=0.0)
    assert (loads.least(), loads.next_up(), loads.is_up(0)) == (0, 0, True)
    loads.mark_silent(0, is_silent=False, now_s=0.0)
    assert loads.counted(0) == loads.tokens(0) == 4
    loads.stop(1)
    loads.start(1, 0.0)
    assert loads.counted(1) < 500


def test_a_silent_replica_that_warms_up_is_not_chosen_either():
    loads = loads_of(100, 300, 0)
    loads.stop(2)
    loads.start(2, 50.0)
    loads.mark_silent(2, is_silent=True, now_s=50.0)
    loads.warm_up(51.0)
    assert loads.least() == 0


def test_a_replica_that_starts_among_idle_ones_does_not_warm_up():
    loads = loads_of(0, 0)
    assert loads.counted(1) == 0


def test_a_fresh_replica_counts_as_loaded_as_the_others_and_less_and_less():
    loads = loads_of(100, 300, 0)
    loads.stop(2)
    loads.start(2, 50.0)
    assert loads.counted(2) == pytest.approx(200)
    loads.add(2, 10)
    loads.warm_up(50.0 + WARM_UP_S / 2)
    assert loads.counted(2) == pytest.approx(110)
    loads.warm_up(50.0 + WARM_UP_S)
    assert loads.counted(2) == pytest.approx(10)
    loads.add(0, 1000)
    loads.warm_up(50.0 + 2 * WARM_UP_S)
    assert loads.counted(2) == pytest.approx(10)


def test_the_load_of_fresh_replicas_does_not_lower_the_handicap():
    loads = loads_of(100, 0, 0)
    for fresh in (1, 2):
        loads.stop(fresh)
        loads.start(fresh, 0.0)
    loads.warm_up(0.0)
    assert [loads.counted(replica) for replica in range(3)] == pytest.approx([100, 100, 100])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=30), st.integers(0, 3))
def test_loads_are_sums_and_a_stop_removes_all_of_it(added, stopped):
    loads = loads_of(0, 0, 0, 0)
    for replica, count in added:
        loads.add(replica, count)
    sums = [sum(count for r, count in added if r == replica) for replica in range(4)]
    assert [loads.tokens(replica) for replica in range(4)] == sums
    loads.stop(stopped)
    loads.stop(stopped)
    assert loads.num_up == 3
    others = [replica for replica in range(4) if replica != stopped]
    assert sums[loads.least()] == min(sums[replica] for replica in others)
    loads.start(stopped, 0.0)
    assert loads.tokens(stopped) == 0
    mean = sum(sums[replica] for replica in others) / 3
    assert loads.counted(stopped) == pytest.approx(mean)
