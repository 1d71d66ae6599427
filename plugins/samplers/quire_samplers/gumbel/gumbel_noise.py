"""Gumbel noise as a stateless hash of seed, child, position and token.

Seed, child, purpose and position are hashed to a 64-bit key of the row, as in `uniform`. Token and
key are hashed to 32 bits: two rounds of shift and multiply, with the constants of C. Wellons'
search for unbiased hash functions ("lowbias32"), and half of the key in each round. The bits give
`u` in (0, 1), and `-log(-log(1 - u))` has the Gumbel distribution. For small `u`, where `1 - u`
would lose bits, a series gives the inner logarithm: winning tokens have small `u`, and unlikely
tokens among them must not be cut off.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl

CHILD: tl.constexpr = tl.constexpr(0xD1B54A32D192ED03)
GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
GOLDEN_32: tl.constexpr = tl.constexpr(0x9E3779B1)
FIRST_32: tl.constexpr = tl.constexpr(0x7FEB352D)
SECOND_32: tl.constexpr = tl.constexpr(0x846CA68B)
UNIT: tl.constexpr = tl.constexpr(2.0**-32)
BELOW_ONE: tl.constexpr = tl.constexpr(1 - 2.0**-24)
SMALL: tl.constexpr = tl.constexpr(2.0**-6)


@triton.jit
def row_key(seed, child, position):
    """Return the 64-bit key of a row for sampling, which has purpose 0."""
    key = _mix(seed.to(tl.uint64) + child.to(tl.uint64) * CHILD)
    return _mix(key + position.to(tl.uint64) * GOLDEN)


@triton.jit
def gumbel_noise(key, token_ids):
    """Return the noise of each token, finite float32."""
    word = token_ids.to(tl.uint32) * GOLDEN_32 + key.to(tl.uint32)
    word = (word ^ (word >> 16)) * FIRST_32
    word = (word ^ (word >> 15) ^ (key >> 32).to(tl.uint32)) * SECOND_32
    word = word ^ (word >> 16)
    u = tl.minimum((word.to(tl.float32) + 0.5) * UNIT, BELOW_ONE)
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)))
    return -tl.log(tl.where(u < SMALL, series, -tl.log(1.0 - u)))


@triton.jit
def _mix(word):
    word = (word ^ (word >> 30)) * FIRST
    word = (word ^ (word >> 27)) * SECOND
    return word ^ (word >> 31)
