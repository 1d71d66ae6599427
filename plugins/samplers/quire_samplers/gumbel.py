"""The token with the largest logit plus noise is a draw by probability; its noise is a hash.

Gumbel noise needs neither a sum over the vocabulary nor a sort, so a row that has no filter takes
one look at its logits, spread over the whole device. Gumbel, "Statistical theory of extreme
values", 1954; Maddison, Tarlow and Minka, "A* sampling", 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import triton

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.gumbel_kernels import (
    CHUNK,
    NUM_FIRST_PIVOTS,
    best_of_chunks,
    settle,
    weigh_chunks,
)
from quire_samplers.gumbel_search import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

# No multiply and add is fused: both ways to a token must see the very same sums.
NO_FUSION = {"enable_fp_fusion": False}
PLAIN_LAUNCH = {"num_warps": 1, **NO_FUSION}
FILTER_LAUNCH = {"num_warps": 16, **NO_FUSION}
WEIGHING_PROGRAMS = 512  # some for each multiprocessor


class Gumbel(Sampler):
    """Reads `temperature`: rows with 0 take the likeliest token, others draw by probability.

    It can do `temperature`, `min_p` and `top_k_top_p` itself, and then draws the token that it
    would draw after them.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._chunk = min(CHUNK, max(BLOCK.value, triton.next_power_of_2(vocab_size)))
        self._num_chunks = triton.cdiv(vocab_size, self._chunk)

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether the request is greedy."""
        return bool(fields["temperature"] == 0)

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; one of probability zero is never drawn."""
        return self._launch(logits, rows, fuse=False)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Do temperature, min-p, top-k and top-p, and draw; the logits stay as they are."""
        return self._launch(logits, rows, fuse=True)

    def _launch(self, logits: Tensor, rows: SampledRows, *, fuse: bool) -> Tensor:
        num_rows, num_chunks = len(logits), self._num_chunks
        columns = rows.columns
        fields = [columns[name] for name in ("temperature", "top_k", "top_p", "min_p")]
        randomness = (rows.slots, rows.positions, columns["seed"], columns["child"])
        row_logits = (logits, logits.stride(0), self.vocab_size)
        sizes = {"CHUNK": self._chunk, "NUM_CHUNKS": triton.next_power_of_2(num_chunks)}
        pivots = {"FIRST_PIVOTS": NUM_FIRST_PIVOTS}

        scores = logits.new_empty(num_rows, num_chunks)
        tokens = torch.empty_like(scores, dtype=torch.int32)
        sampled = logits.new_empty(num_rows, dtype=torch.int64)
        counts = masses = scores  # nobody looks at them, unless filters are absorbed
        grid = (num_rows, num_chunks)
        best_of_chunks[grid](
            *row_logits, *randomness, *fields, scores, tokens,
            ABSORB=fuse, CHUNK=self._chunk, num_warps=8, **NO_FUSION,
        )  # fmt: skip
        if fuse:
            masses = logits.new_empty(num_rows, num_chunks, NUM_FIRST_PIVOTS)
            counts = torch.empty_like(masses, dtype=torch.int32)
            per_row = min(num_chunks, triton.cdiv(WEIGHING_PROGRAMS, num_rows))
            weigh_chunks[num_rows, per_row](
                *row_logits, num_chunks, rows.slots, *fields, scores, counts, masses,
                **sizes, **pivots, **FILTER_LAUNCH,
            )  # fmt: skip
        settle[num_rows,](
            *row_logits, num_chunks, *randomness, *fields, scores, tokens, counts, masses, sampled,
            ABSORB=fuse, **sizes, **pivots, **(FILTER_LAUNCH if fuse else PLAIN_LAUNCH),
        )  # fmt: skip
        return sampled
