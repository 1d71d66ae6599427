"""Green lists of watermarks: for each context, the tokens whose keyed hash is below a threshold.

Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, seed a generator with a
hash of the previous tokens and permute the vocabulary; the first part of the permutation is green.
Here each token is hashed with the context, and is green if its hash is below the ratio. A list has
that part of the vocabulary in expectation instead of exactly. In return a token's colour is known
without the rest of the list, on any shard of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire_samplers.token_hash import shift_right_32, token_hash
from quire_samplers.uniform_noise import GOLDEN, mix

if TYPE_CHECKING:
    from torch import Tensor

_NUM_BITS = 24  # of a token's hash: a float32 ratio times 2**24 is exact


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
    """Return which tokens are in the green lists of the contexts."""
    bits = shift_right_32(token_hash(seeds, token_ids), 32 - _NUM_BITS)
    green: Tensor = bits < (ratios * 2**_NUM_BITS).int()
    return green
