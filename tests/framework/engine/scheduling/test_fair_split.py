import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.scheduling.fair_split import split_fairly


@pytest.mark.parametrize(
    ("demands", "budget", "split"),
    [
        ([10, 10], 10, [5, 5]),
        ([2, 100, 100], 20, [2, 9, 9]),
        ([100, 100, 100], 10, [4, 3, 3]),
        ([5, 5], 100, [5, 5]),
        ([5, 5], 0, [0, 0]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([], 10, []),
    ],
)
def test_the_surplus_goes_to_larger_demands(demands, budget, split):
    assert split_fairly(demands, budget) == split


@given(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 5000))
def test_the_budget_is_used_and_no_part_exceeds_an_unmet_one(demands, budget):
    split = split_fairly(demands, budget)
    assert sum(split) == min(budget, sum(demands))
    assert all(0 <= part <= demand for part, demand in zip(split, demands, strict=True))
    unmet = [s for s, d in zip(split, demands, strict=True) if s < d]
    assert not unmet or max(split) - min(unmet) <= 1
    assert budget < len(demands) or all(split)
