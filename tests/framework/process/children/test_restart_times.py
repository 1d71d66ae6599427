"""Pauses before a restart grow, and a replica that dies too often stays down."""

from itertools import pairwise

from quire.process.children.restart_times import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_STARTS,
    WINDOW_S,
    RestartTimes,
)


def test_pauses_double_up_to_the_longest():
    times = RestartTimes()
    pauses = [times.next_after(float(death)) - death for death in range(MAX_STARTS)]
    assert pauses[0] == FIRST_PAUSE_S
    assert all(after == min(2 * before, LONGEST_PAUSE_S) for before, after in pairwise(pauses))


def test_one_death_too_many_within_the_window_is_the_last():
    times = RestartTimes()
    assert all(times.next_after(0.0) is not None for _ in range(MAX_STARTS))
    assert times.next_after(WINDOW_S - 1) is None


def test_deaths_before_the_window_do_not_count():
    times = RestartTimes()
    for _ in range(MAX_STARTS):
        times.next_after(0.0)
    assert times.next_after(WINDOW_S) == WINDOW_S + FIRST_PAUSE_S
