"""Categorical sampling by inversion: the first token whose cumulative probability exceeds u.

The cumulative sum runs over blocks of tokens first and then inside the selected block, so no
`[N, V]` tensor of cumulative probabilities is created; that takes a fifth of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.uniform_noise import PURPOSE_SAMPLE, uniform

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 128  # tokens per block
BELOW_ONE = 1 - 2.0**-40


class Categorical(Sampler):
    """Sampler that reads `temperature`: rows with 0 are greedy, others sample by probability."""

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        most_likely = logits.argmax(-1)
        if rows.all_greedy:
            return most_likely
        probs = logits.softmax(-1)
        sampled = by_cumulative(probs, uniform(rows, PURPOSE_SAMPLE))
        # Rounding differences between the sums, or NaN logits, could lead to such a token.
        is_possible = probs.gather(1, sampled.unsqueeze(1)).squeeze(1) > 0
        is_greedy = rows.slot_fields["temperature"][rows.slots] == 0
        return torch.where(is_possible & ~is_greedy, sampled, most_likely)


def by_cumulative(probs: Tensor, u: Tensor) -> Tensor:  # [N, V], [N] float64 -> [N] int64
    """Return the first token of each row whose cumulative sum exceeds `u` times the total."""
    block_sums = _block_sums(probs).double()
    sums = block_sums.cumsum(-1)  # [N, ceil(V / WIDTH)]
    target = u.unsqueeze(1) * sums[:, -1:]
    block = _first_above(sums, target)  # [N, 1]
    target = target - (sums - block_sums).gather(1, block)
    token_ids = block * WIDTH + torch.arange(WIDTH, device=probs.device)  # [N, WIDTH]
    last = probs.shape[1] - 1
    inside = probs.gather(1, token_ids.clamp(max=last)).masked_fill(token_ids > last, 0)
    inside = inside.double().cumsum(-1)
    # The block's own sum is rounded differently; a target beyond it means the last possible token.
    offset = _first_above(inside, torch.minimum(target, inside[:, -1:] * BELOW_ONE))
    return (block * WIDTH + offset).clamp(max=last).squeeze(1)


def _block_sums(probs: Tensor) -> Tensor:  # [N, V] -> [N, ceil(V / WIDTH)]
    num_rows, vocab_size = probs.shape
    whole = vocab_size - vocab_size % WIDTH
    sums = probs[:, :whole].view(num_rows, whole // WIDTH, WIDTH).sum(-1)
    if whole == vocab_size:
        return sums
    return torch.cat((sums, probs[:, whole:].sum(-1, keepdim=True)), 1)


def _first_above(sums: Tensor, target: Tensor) -> Tensor:  # [N, M], [N, 1] -> [N, 1]
    return torch.searchsorted(sums, target, right=True).clamp(max=sums.shape[1] - 1)
