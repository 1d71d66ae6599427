"""Figures of a benchmark: medians with 95 % bootstrap intervals."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

NUM_RESAMPLES = 2000
INTERVAL = 0.95

T = TypeVar("T")


class Figure(NamedTuple):
    """The median of some samples, with its bootstrap interval, and their mean."""

    median: float
    low: float
    high: float
    mean: float

    @classmethod
    def of(cls, samples: Sequence[float], scale: float = 1.0) -> "Figure":
        """Return the figure of some samples, each multiplied by `scale`."""
        scaled = [sample * scale for sample in samples]
        low, high = bootstrap(scaled, statistics.median)
        return cls(statistics.median(scaled), low, high, statistics.fmean(scaled))

    def divided_by(self, count: float) -> "Figure":
        """Return the figure divided by a count."""
        return Figure(*(value / count for value in self))

    def less(self, cost: float) -> "Figure":
        """Return the figure minus a cost that all samples include."""
        return Figure(*(value - cost for value in self))

    def show(self, digits: int = 2) -> str:
        """Return the median with its interval as text."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def bootstrap(
    samples: Sequence[T],
    statistic: Callable[[Sequence[T]], float],
    num_resamples: int = NUM_RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentile method) of a statistic; deterministic.

    Source: Efron, Bootstrap methods: another look at the jackknife, 1979.
    """
    rng = random.Random(0)
    found = sorted(statistic(rng.choices(samples, k=len(samples))) for _ in range(num_resamples))
    rest = (1 - INTERVAL) / 2
    return found[int(num_resamples * rest)], found[int(num_resamples * (1 - rest)) - 1]
