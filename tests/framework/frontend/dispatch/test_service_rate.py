"""The rate is that of the last seconds of work: idle time ages it, and a long step lowers it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.dispatch.service_rate import WINDOW_S, ServiceRate

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "count", "end"]),
        st.integers(0, 10_000),
        st.floats(0.0, 30.0, allow_nan=False),
    ),
    max_size=60,
)


def working(tokens_per_second, seconds, since_s=0.0):
    rate = ServiceRate()
    rate.begin(since_s)
    for step in range(1, seconds * 10 + 1):
        rate.count(tokens_per_second // 10, since_s + step / 10)
    return rate


def test_a_steady_rate_is_measured():
    assert working(1000, 5).per_second(5.0) == pytest.approx(1000, rel=0.05)
    assert working(1000, 60).per_second(60.0) == pytest.approx(1000, rel=0.05)


def test_before_anything_is_measured_there_is_no_rate():
    rate = ServiceRate()
    assert rate.per_second(0.0) is None
    rate.begin(1.0)
    rate.count(100, 1.1)
    assert rate.per_second(1.1) is None, "a tenth of a second says nothing"
    assert rate.per_second(100.0) is not None


def test_a_rate_follows_a_change_within_some_windows():
    rate = working(1000, 30)
    for step in range(1, 10 * 4 * int(WINDOW_S) + 1):
        rate.count(10, 30.0 + step / 10)
    assert rate.per_second(30 + 4 * WINDOW_S) == pytest.approx(100, rel=0.2)


def test_idle_time_is_no_service_and_ages_what_was_measured():
    rate = working(1000, 20)
    rate.end(20.0)
    assert rate.per_second(25.0) == pytest.approx(1000, rel=0.05)
    assert rate.per_second(20.0 + 20 * WINDOW_S) is None
    rate.begin(20.0 + WINDOW_S)
    rate.count(1, 22.0 + WINDOW_S)
    assert 0 < rate.per_second(22.0 + WINDOW_S) < 1000


def test_tokens_while_nothing_is_measured_are_no_service_in_no_time():
    rate = working(1000, 20)
    rate.end(20.0)
    before = rate.per_second(20.0)
    rate.count(10**6, 20.0)
    assert rate.per_second(20.0) == before


def test_a_step_that_takes_long_lowers_the_rate_before_it_ends():
    rate = working(1000, 20)
    seen = [rate.per_second(20.0 + waited_s) for waited_s in (0, 1, 10, 100, 1000)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 1e-9


@given(EVENTS)
def test_a_rate_is_positive_and_no_more_than_the_fastest_step_allows(events):
    rate, now_s, num_tokens = ServiceRate(), 0.0, 0
    for name, tokens, seconds in events:
        now_s += seconds
        if name == "count":
            rate.count(tokens, now_s)
            num_tokens += tokens
        else:
            getattr(rate, name)(now_s)
        found = rate.per_second(now_s)
        assert found is None or 0 <= found <= num_tokens / 0.5
