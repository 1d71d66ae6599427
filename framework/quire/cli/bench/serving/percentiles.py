"""Percentiles of samples, as NumPy's default computes them."""

from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted samples, interpolated linearly between the nearest two.

    Args:
        samples: At least one sample, in ascending order.
        percent: From 0 to 100.
    """
    position = (len(samples) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(samples) - 1)
    return samples[below] + (samples[above] - samples[below]) * (position - below)
