"""Share a step's tokens among prompts: everybody an equal part, and what one leaves, the others."""

from collections.abc import Sequence


def fair_shares(demands: Sequence[int], budget: int) -> list[int]:
    """Return how many tokens each demand gets.

    No share is larger than its demand; all that is not needed goes on to those that need more; if
    the budget is not shorter than the list, everybody with a demand gets something.
    """
    shares = [0] * len(demands)
    by_size = sorted(range(len(demands)), key=demands.__getitem__)
    for rank, index in enumerate(by_size):
        equal = -(-budget // (len(demands) - rank))  # rounded up: the first in need get the rest
        shares[index] = min(demands[index], equal, budget)
        budget -= shares[index]
    return shares
