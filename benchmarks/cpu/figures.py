"""A figure is a median, with an interval between two of its samples that claims no more than holds.

The median of what is sampled lies between the k-th smallest and the k-th largest of n samples with
a probability that the binomial distribution gives exactly, whatever the samples are distributed
like. (Source: David and Nagaraja, Order Statistics, section 7.1.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

WANTED_COVERAGE = 0.95
ALIKE = 0.25  # of the first tokens: number types part near ties, and what is wrong has none alike
TELLING = 4  # answers: of fewer, one near tie would decide
Rounds = Sequence[Mapping[str, Any]]


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, its interval, how often such an interval holds it, and how many they are.

    The interval is the narrowest that holds it in 95 of 100 runs; where the samples are too few for
    that, it goes from the least to the most, and the coverage says what that is worth.
    """
    ordered, count = sorted(samples), len(samples)
    fits = [k for k in range(2, count // 2 + 1) if coverage(count, k) >= WANTED_COVERAGE]
    k = max(fits, default=1)
    return {
        "median": statistics.median(ordered),
        "interval": (ordered[k - 1], ordered[count - k]),
        "coverage": coverage(count, k),
        "pairs": count,
    }


def coverage(count: int, k: int) -> float:
    """Return how often the median is between the k-th smallest and the k-th largest of so many."""
    outside: float = sum(math.comb(count, below) for below in range(k)) / 2**count
    return max(0.0, 1 - 2 * outside)


def rates(rounds: Rounds, label: str, figure: str) -> dict[str, Any] | None:
    """Return an engine's figure over the rounds that it finished; None where there is none."""
    samples = [each["figures"][label][figure] for each in rounds if label in each["figures"]]
    return summary(samples) if samples else None


def ratios(rounds: Rounds, ours: str, theirs: str, figure: str) -> dict[str, Any] | None:
    """Return how many times an engine's figure another's is: the median of the rounds' ratios.

    Only rounds count that both finished; None where there is none.
    """
    both = [each["figures"] for each in rounds if {ours, theirs} <= set(each["figures"])]
    samples = [each[ours][figure] / each[theirs][figure] for each in both]
    if not samples:
        return None
    names = {"ours": ours, "theirs": theirs, "figure": figure}
    return names | summary(samples) | {"samples": samples}


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of tokens before the first difference; near ties may part two answers."""
    same = total = 0
    for mine, other in zip(ours, theirs, strict=True):
        total += len(other)
        unlike = (i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
        same += next(unlike, len(other))
    return same / total


def begin_unlike(right: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> bool:
    """Return whether answers are not those of the same model; False where they are too few."""
    return len(right) >= TELLING and first_tokens(right, answers) < ALIKE


def first_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of answers that begin alike."""
    return statistics.fmean(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))
