"""Slopes of attention with linear biases (ALiBi; Press, Smith and Lewis, 2022). Torch-free."""

from __future__ import annotations


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> tuple[float, ...]:
    """Return the slope of each query head.

    With a power of two of heads, they are a geometric series that ends at `2**-max_bias`. With
    another number, they are those of the next smaller power, followed by every other one of twice
    that power.

    Args:
        num_heads: Number of query heads of the whole model.
        max_bias: Exponent of the smallest slope: 8, unless the checkpoint's config has another one
            (MPT).
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-max_bias * i / power) for i in range(1, power + 1)]
    more = [2.0 ** (-max_bias * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return (*slopes, *more)[:num_heads]
