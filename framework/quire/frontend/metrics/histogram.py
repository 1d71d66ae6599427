"""Histogram with fixed bounds: an observation is one binary search and two additions."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

SHORT_TIMES_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LONG_TIMES_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
COUNTS = tuple(
    float(digit * 10**exponent) for exponent in range(6) for digit in (1, 2, 5)
)  # 1 to 500,000


class Histogram:
    """Numbers of observations between bounds, and their sum.

    Args:
        bounds: Upper bounds of the buckets, ascending; a last bucket has no bound.

    Attributes:
        total: Sum of the observations.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count an observation."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self._counts)

    def cumulative_counts(self) -> list[int]:
        """Return the number of observations up to each bound, and last of all."""
        return list(accumulate(self._counts))
