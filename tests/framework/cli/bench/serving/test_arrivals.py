"""Arrival times of a load."""

import math
import random
import statistics
from itertools import pairwise

import pytest

from quire.cli.bench.serving.arrivals import arrival_times


def gaps(burstiness, count=4000, rate=5.0):
    times = arrival_times(count, rate, burstiness, random.Random(1))
    return [after - before for before, after in pairwise([0.0, *times])]


def test_an_infinite_rate_sends_all_at_once():
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_the_last_request_comes_when_the_rate_says(burstiness):
    times = arrival_times(40, 8.0, burstiness, random.Random(3))
    assert times[-1] == pytest.approx(5.0)
    assert times == sorted(times)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_the_gaps_have_a_gamma_distribution_of_that_shape(burstiness):
    found = gaps(burstiness)
    variation = statistics.stdev(found) / statistics.fmean(found)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_a_poisson_process_has_exponential_gaps():
    found = gaps(1.0)
    longer = sum(gap > 0.2 for gap in found) / len(found)  # the mean gap
    assert longer == pytest.approx(math.exp(-1), abs=0.03)


def test_a_seed_gives_the_same_times():
    one, other = (arrival_times(9, 2.0, 1.0, random.Random(7)) for _ in range(2))
    assert one == other
