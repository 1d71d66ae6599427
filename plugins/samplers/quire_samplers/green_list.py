"""Green lists of watermarks: for each context, the tokens whose keyed hash is below a threshold.

Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, seed a generator with a
hash of the previous tokens and permute the vocabulary; the first part of the permutation is green.
Here each token is hashed with the context, and is green if its hash is below the ratio. A list has
that part of the vocabulary in expectation instead of exactly. In return a token's colour is known
without the rest of the list, on any shard of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire_samplers.uniform_noise import GOLDEN, mix, shift_right

if TYPE_CHECKING:
    from torch import Tensor

_NUM_BITS = 24  # of a token's hash: a float32 ratio times 2**24 is exact
_GOLDEN_32 = 0x9E3779B1 - 2**32  # 2**32 / golden ratio
_FIRST_32 = 0x7FEB352D
_SECOND_32 = 0x846CA68B - 2**32


def context_seeds(
    keys: Tensor,  # [N] int64
    contexts: Tensor,  # [N, W] int64, the last column is the previous token
    widths: Tensor,  # [N] int64, up to W
) -> Tensor:  # [N] int64
    """Return a hash of each row's key and of its last `widths` tokens, in their order."""
    seeds = mix(keys + GOLDEN)
    for back in range(contexts.shape[1], 0, -1):
        mixed = mix(seeds + (contexts[:, -back] + 1) * GOLDEN)
        seeds = mixed.where(widths >= back, seeds)
    return seeds


def is_green(
    seeds: Tensor,  # [N, 1] int64
    token_ids: Tensor,  # [M] or [N, M] int64
    ratios: Tensor,  # [N, 1] float32
) -> Tensor:  # [N, M] bool
    """Return which tokens are in the green lists of the contexts.

    A token and the halves of a seed are hashed to 32 bits: two rounds of shift and multiply, with
    the constants of C. Wellons' search for unbiased hash functions ("lowbias32").
    """
    word = token_ids.int() * _GOLDEN_32 + seeds.int()  # the low half
    word = word.bitwise_xor_(_shift_right_32(word, 16)).mul_(_FIRST_32)
    word.bitwise_xor_(_shift_right_32(word, 15)).bitwise_xor_(shift_right(seeds, 32).int())
    word.mul_(_SECOND_32)
    word.bitwise_xor_(_shift_right_32(word, 16))
    return _shift_right_32(word, 32 - _NUM_BITS) < (ratios * 2**_NUM_BITS).int()


def _shift_right_32(word: Tensor, num_bits: int) -> Tensor:  # int32, both
    shifted = word.bitwise_right_shift(num_bits)
    shifted &= (1 << (32 - num_bits)) - 1  # int32 has no logical shift: mask copies of the sign
    return shifted
