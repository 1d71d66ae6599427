"""Gumbel-max sampling on GPUs: the token with the largest logit plus hashed noise.

It needs neither a sum over the vocabulary nor a sort, so a row without filters takes one pass over
its logits, parallel over the whole device. Gumbel, "Statistical theory of extreme values", 1954;
Maddison, Tarlow and Minka, "A* sampling", 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.gumbel_kernels import (
    CHUNK,
    NUM_FIRST_PIVOTS,
    best_of_chunks,
    select_tokens,
    weigh_chunks,
)
from quire_samplers.gumbel_search import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

# No fused multiply-add: both paths to a token must compute the same sums.
NO_FUSION = {"enable_fp_fusion": False}
PLAIN_LAUNCH = {"num_warps": 1, **NO_FUSION}
FILTER_LAUNCH = {"num_warps": 16, **NO_FUSION}
WEIGHING_PROGRAMS = 512  # several per multiprocessor


class Gumbel(Sampler):
    """Sampler that reads `temperature`: rows with 0 are greedy, others sample by probability.

    It can fuse `temperature`, `min_p` and `top_k_top_p`, and then samples the same token as after
    the separate steps.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._chunk = min(CHUNK, max(BLOCK.value, triton.next_power_of_2(vocab_size)))
        self._num_chunks = triton.cdiv(vocab_size, self._chunk)

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        return self._launch(logits, rows, fuse=False)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Apply temperature, min-p, top-k and top-p, and sample; the logits are not changed."""
        return self._launch(logits, rows, fuse=True)

    def _launch(self, logits: Tensor, rows: SampledRows, *, fuse: bool) -> Tensor:
        num_rows, num_chunks = len(logits), self._num_chunks
        slot_fields = rows.slot_fields
        fields = [slot_fields[name] for name in ("temperature", "top_k", "top_p", "min_p")]
        randomness = (rows.slots, rows.positions, slot_fields["seed"], slot_fields["child"])
        row_logits = (logits, logits.stride(0), self.vocab_size)
        sizes = {"CHUNK": self._chunk, "NUM_CHUNKS": triton.next_power_of_2(num_chunks)}
        pivots = {"FIRST_PIVOTS": NUM_FIRST_PIVOTS}

        scores = logits.new_empty(num_rows, num_chunks)
        tokens = torch.empty_like(scores, dtype=torch.int32)
        sampled = logits.new_empty(num_rows, dtype=torch.int64)
        counts = masses = scores  # not read unless filters are fused
        grid = (num_rows, num_chunks)
        best_of_chunks[grid](
            *row_logits, *randomness, *fields, scores, tokens,
            FUSE=fuse, CHUNK=self._chunk, num_warps=8, **NO_FUSION,
        )  # fmt: skip
        if fuse:
            masses = logits.new_empty(num_rows, num_chunks, NUM_FIRST_PIVOTS)
            counts = torch.empty_like(masses, dtype=torch.int32)
            per_row = min(num_chunks, triton.cdiv(WEIGHING_PROGRAMS, num_rows))
            weigh_chunks[num_rows, per_row](
                *row_logits, num_chunks, rows.slots, *fields, scores, counts, masses,
                **sizes, **pivots, **FILTER_LAUNCH,
            )  # fmt: skip
        select_tokens[num_rows,](
            *row_logits, num_chunks, *randomness, *fields, scores, tokens, counts, masses, sampled,
            FUSE=fuse, **sizes, **pivots, **(FILTER_LAUNCH if fuse else PLAIN_LAUNCH),
        )  # fmt: skip
        return sampled
