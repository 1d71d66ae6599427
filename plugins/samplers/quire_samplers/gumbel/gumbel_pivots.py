"""Pivot logits for the search of the logit at which the kept tokens end."""

# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl

NUM_PIVOTS: tl.constexpr = tl.constexpr(8)
INF: tl.constexpr = tl.constexpr(float("inf"))
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def first_pivots(best, FIRST_PIVOTS: tl.constexpr):
    """Return logits below the best, denser near it; the last is -inf."""
    steps = tl.arange(0, FIRST_PIVOTS) + 1
    return tl.where(steps < FIRST_PIVOTS, best - (steps * steps).to(tl.float32) / 16.0, -INF)


@triton.jit
def pivots_between(low, high, value):
    """Return logits in [low, high]: evenly spaced ones, the middle float, and `value`."""
    index = tl.arange(0, NUM_PIVOTS)
    top = tl.maximum(high, LOWEST)  # both may be -inf
    span = top - tl.maximum(low, top - 64.0)
    even = top - span * (index + 1).to(tl.float32) / (NUM_PIVOTS - 1.0)
    middle = _from_key((float_key(low) + float_key(high)) >> 1)
    pivots = tl.where(index == NUM_PIVOTS - 2, middle, even)
    pivots = tl.where(index == NUM_PIVOTS - 1, value, pivots)
    return tl.minimum(tl.maximum(pivots, low), high)


@triton.jit
def float_key(x):
    """Return an int64 key with the order of floats; both zeros have the same key."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, -(bits & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _from_key(key):
    """Return the float of a key."""
    bits = tl.where(key >= 0, key, -key).to(tl.int32)
    bits = tl.where(key >= 0, bits, bits | -0x80000000)
    return bits.to(tl.float32, bitcast=True)
