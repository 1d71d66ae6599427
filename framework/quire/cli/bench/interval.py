"""A figure is a median with the interval in which 95 of 100 repetitions would put it."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

DRAWS = 2000
INTERVAL = 0.95


class Figure(NamedTuple):
    """The median of some samples, with its bootstrap interval, and their mean."""

    median: float
    low: float
    high: float
    mean: float

    @classmethod
    def of(cls, samples: Sequence[float], scale: float = 1.0) -> "Figure":
        """Return the figure of some samples, in other units: each times `scale`."""
        scaled = [sample * scale for sample in samples]
        low, high = bootstrap(scaled, statistics.median)
        return cls(statistics.median(scaled), low, high, statistics.fmean(scaled))

    def divided_by(self, count: float) -> "Figure":
        """Return the same figure of a part."""
        return Figure(*(value / count for value in self))

    def less(self, cost: float) -> "Figure":
        """Return the figure without a cost that all samples have."""
        return Figure(*(value - cost for value in self))

    def show(self, digits: int = 2) -> str:
        """Return the median with its interval, for people."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def bootstrap(
    samples: Sequence[float], statistic: Callable[[Sequence[float]], float], draws: int = DRAWS
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentile method) of a statistic; always the same one.

    Source: Efron, Bootstrap methods: another look at the jackknife, 1979.
    """
    draw = random.Random(0)
    found = sorted(statistic(draw.choices(samples, k=len(samples))) for _ in range(draws))
    rest = (1 - INTERVAL) / 2
    return found[int(draws * rest)], found[int(draws * (1 - rest)) - 1]
