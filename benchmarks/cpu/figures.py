"""Medians with intervals between two samples, ratios of rounds, and agreement of completions.

The median of a distribution lies between the k-th smallest and the k-th largest of n samples with a
probability that the binomial distribution gives exactly, for any distribution. (Source: David and
Nagaraja, Order Statistics, section 7.1.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

WANTED_COVERAGE = 0.95
ALIKE = 0.25  # fraction of equal first tokens: number types decide near ties differently
ENOUGH_COMPLETIONS = 4  # with fewer, one near tie would decide
Rounds = Sequence[Mapping[str, Any]]


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Return the median, its interval, the interval's coverage, and the number of samples.

    The interval is the narrowest one with a coverage of 95 %; with too few samples for that, it
    goes from the minimum to the maximum.
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
    """Return the probability that the median is between the k-th smallest and largest sample."""
    outside: float = sum(math.comb(count, below) for below in range(k)) / 2**count
    return max(0.0, 1 - 2 * outside)


def rates(rounds: Rounds, label: str, figure: str) -> dict[str, Any] | None:
    """Return an engine's figure over the rounds that it completed; None if there are none."""
    samples = [each["figures"][label][figure] for each in rounds if label in each["figures"]]
    return summary(samples) if samples else None


def ratios(rounds: Rounds, ours: str, theirs: str, figure: str) -> dict[str, Any] | None:
    """Return the ratio of two engines' figures: the median of the rounds' ratios.

    Only rounds count that both completed; None if there are none.
    """
    both = [each["figures"] for each in rounds if {ours, theirs} <= set(each["figures"])]
    samples = [each[ours][figure] / each[theirs][figure] for each in both]
    if not samples:
        return None
    names = {"ours": ours, "theirs": theirs, "figure": figure}
    return names | summary(samples) | {"samples": samples}


def shares(rounds: Rounds, label: str, memory: str, num_bytes: int) -> dict[str, Any] | None:
    """Return the fraction of the read bandwidth at which an engine's weights are read in decoding.

    Args:
        rounds: Rounds in which memory was read, too.
        label: Label of the engine.
        memory: Label of the bandwidth.
        num_bytes: Bytes of the weights that are read for a token.

    Returns:
        Median, interval and samples over the rounds that have both; None without any.
    """
    both = [each["figures"] for each in rounds if {label, memory} <= set(each["figures"])]
    samples = [
        each[label]["decode_tok_s"] * num_bytes / each[memory]["bytes_per_s"] for each in both
    ]
    return summary(samples) | {"samples": samples, "bytes": num_bytes} if samples else None


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the fraction of tokens before the first difference of each two completions."""
    same = total = 0
    for mine, other in zip(ours, theirs, strict=True):
        total += len(other)
        unlike = (i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
        same += next(unlike, len(other))
    return same / total


def start_differently(right: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> bool:
    """Return whether completions are not of the same model; False if they are too few."""
    return len(right) >= ENOUGH_COMPLETIONS and first_tokens(right, completions) < ALIKE


def first_tokens(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the fraction of completions with the same first token."""
    return statistics.fmean(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))
