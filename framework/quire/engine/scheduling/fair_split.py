"""Fair split of a step's tokens among prompts: equal parts, with the surplus redistributed."""

from collections.abc import Sequence


def split_fairly(demands: Sequence[int], budget: int) -> list[int]:
    """Return the number of tokens for each demand.

    No part exceeds its demand; the surplus goes to larger demands. If the budget is at least the
    number of demands, every nonzero demand gets at least one token.
    """
    split = [0] * len(demands)
    by_size = sorted(range(len(demands)), key=demands.__getitem__)
    for rank, index in enumerate(by_size):
        equal = -(-budget // (len(demands) - rank))  # rounded up: the first get the remainder
        split[index] = min(demands[index], equal, budget)
        budget -= split[index]
    return split
