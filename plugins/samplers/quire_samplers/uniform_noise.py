"""Stateless uniform random numbers: a hash of seed, child, position and purpose.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014) with the constants of Stafford's variant 13. It is
applied twice: to seed, child and purpose, and to the result and the position. int64 products wrap
around as required; int64 has no logical shift, so the copies of the sign are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.interfaces.sampling import SampledRows

if TYPE_CHECKING:
    from torch import Tensor

PURPOSE_SAMPLE = 0  # each use of randomness has its own number


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: SplitMix64's increment
_CHILD = _signed(0xD1B54A32D192ED03)  # odd, mixed bits: children do not collide with seeds
_PURPOSE = _signed(0xABC98388FB8FAC03)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_NUM_BITS = 52  # a float64 holds them


def uniform(rows: SampledRows, purpose: int) -> Tensor:
    """Return one number in [0, 1) for each row, `[N]` float64.

    It depends only on the row's seed, child and position, and on `purpose`.
    """
    bits = row_keys(rows, purpose)
    return shift_right(bits, 64 - _NUM_BITS).double() * 2.0**-_NUM_BITS


def row_keys(rows: SampledRows, purpose: int) -> Tensor:
    """Return 64 mixed bits for each row, `[N]` int64."""
    seed = rows.slot_fields["seed"][rows.slots]
    child = rows.slot_fields["child"][rows.slots]
    key = mix(seed + child * _CHILD + _signed(purpose * _PURPOSE % 2**64))
    return mix(key + rows.positions * GOLDEN)


def mix(word: Tensor) -> Tensor:  # [N] int64, both
    """Return a bijective hash of 64 bits; each bit of the input flips half of the output."""
    word = (word ^ shift_right(word, 30)) * _FIRST
    word = (word ^ shift_right(word, 27)) * _SECOND
    return word ^ shift_right(word, 31)


def shift_right(word: Tensor, num_bits: int) -> Tensor:  # [N] int64, both
    """Return the bits moved to the right, with zeros in front."""
    return word.bitwise_right_shift(num_bits) & ((1 << (64 - num_bits)) - 1)
