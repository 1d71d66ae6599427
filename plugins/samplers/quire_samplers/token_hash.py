"""A hash of 32 bits of a token and a 64-bit key: two rounds of shift and multiply.

The constants are those of C. Wellons' search for unbiased hash functions ("lowbias32"). The kernels
of `gumbel` and `cpu_gumbel` compute the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire_samplers.uniform_noise import shift_right

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = 0x9E3779B1 - 2**32  # 2**32 / golden ratio
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - 2**32


def token_hash(
    keys: Tensor,  # [N, 1] int64
    token_ids: Tensor,  # [M] or [N, M] int64
) -> Tensor:  # [N, M] int32
    """Return a hash of each token and its row's key: each round mixes in half of the key."""
    word: Tensor = token_ids.int() * _GOLDEN + keys.int()  # the low half
    word = word.bitwise_xor_(shift_right_32(word, 16)).mul_(_FIRST)
    word.bitwise_xor_(shift_right_32(word, 15)).bitwise_xor_(shift_right(keys, 32).int())
    word.mul_(_SECOND)
    return word.bitwise_xor_(shift_right_32(word, 16))


def shift_right_32(word: Tensor, num_bits: int) -> Tensor:  # int32, both
    """Return the bits moved to the right, with zeros in front."""
    shifted = word.bitwise_right_shift(num_bits)
    shifted &= (1 << (32 - num_bits)) - 1  # int32 has no logical shift: mask copies of the sign
    return shifted
