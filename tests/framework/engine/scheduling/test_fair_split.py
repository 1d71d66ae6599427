import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.scheduling.fair_split import fair_shares


@pytest.mark.parametrize(
    ("demands", "budget", "shares"),
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
def test_what_one_leaves_the_others_get(demands, budget, shares):
    assert fair_shares(demands, budget) == shares


@given(st.lists(st.integers(1, 1000), max_size=20), st.integers(0, 5000))
def test_shares_use_the_budget_and_nobody_gets_more_than_a_smaller_need(demands, budget):
    shares = fair_shares(demands, budget)
    assert sum(shares) == min(budget, sum(demands))
    assert all(0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
    unmet = [s for s, d in zip(shares, demands, strict=True) if s < d]
    assert not unmet or max(shares) - min(unmet) <= 1
    assert budget < len(demands) or all(shares)
