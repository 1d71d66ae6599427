"""A histogram counts each observation once, in the first bucket that holds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.metrics.histogram import COUNTS, LONG_TIMES_S, SHORT_TIMES_S, Histogram


@pytest.mark.parametrize("bounds", [COUNTS, LONG_TIMES_S, SHORT_TIMES_S])
def test_bounds_ascend(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_a_bound_belongs_to_its_bucket():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.cumulative_counts() == [2, 4, 5]
    assert (histogram.count, histogram.total) == (5, 7.5)


@given(st.lists(st.floats(0, 1000)))
def test_the_number_up_to_a_bound_is_that_of_the_smaller_observations(values):
    histogram = Histogram((0.1, 1.0, 100.0))
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in histogram.bounds]
    assert histogram.cumulative_counts() == [*expected, len(values)]
    assert histogram.total == pytest.approx(sum(values))
