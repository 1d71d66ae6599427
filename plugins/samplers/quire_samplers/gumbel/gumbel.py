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
from quire_samplers.gumbel.gumbel_kernels import (
    CHUNK,
    NUM_FIRST_PIVOTS,
    best_of_chunks,
    select_tokens,
    weigh_chunks,
)
from quire_samplers.gumbel.gumbel_search import BLOCK

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

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        return self._launch(logits, rows, fuse=False)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Apply temperature, min-p, top-k and top-p, and sample; the logits are not changed."""
        return self._launch(logits, rows, fuse=True)

    def sample_shard(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row and its token id, `[N]` both."""
        return _best_of(*_best_of_chunks(logits, rows, fuse=False))

    def sample_shard_fused(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Apply the temperature, and return what `sample_shard` returns; no row has filters."""
        return _best_of(*_best_of_chunks(logits, rows, fuse=True))

    def _launch(self, logits: Tensor, rows: SampledRows, *, fuse: bool) -> Tensor:
        scores, tokens = _best_of_chunks(logits, rows, fuse=fuse)
        num_rows, num_chunks = scores.shape
        chunk = _chunk_size(self.vocab_size)
        fields, randomness = _fields_of(rows), _randomness_of(rows)
        row_logits = (logits, logits.stride(0), self.vocab_size)
        sizes = {"CHUNK": chunk, "NUM_CHUNKS": triton.next_power_of_2(num_chunks)}
        pivots = {"FIRST_PIVOTS": NUM_FIRST_PIVOTS}

        sampled = logits.new_empty(num_rows, dtype=torch.int64)
        counts = masses = scores  # not read unless filters are fused
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


def _best_of_chunks(
    logits: Tensor,  # [N, M]
    rows: SampledRows,
    *,
    fuse: bool,
) -> tuple[Tensor, Tensor]:  # [N, chunks] float32 and int32
    """Return the largest score of each chunk of the rows, and its token id."""
    num_rows, num_tokens = logits.shape
    chunk = _chunk_size(num_tokens)
    scores = logits.new_empty(num_rows, triton.cdiv(num_tokens, chunk))
    tokens = torch.empty_like(scores, dtype=torch.int32)
    best_of_chunks[scores.shape](
        logits, logits.stride(0), num_tokens, rows.first_token_id,
        *_randomness_of(rows), *_fields_of(rows), scores, tokens,
        FUSE=fuse, CHUNK=chunk, num_warps=8, **NO_FUSION,
    )  # fmt: skip
    return scores, tokens


def _best_of(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:  # [N, chunks] -> [N]
    best, chunk = scores.max(-1, keepdim=True)  # the first chunk with this score
    return best.squeeze(1), tokens.gather(1, chunk).squeeze(1).long()


def _chunk_size(num_tokens: int) -> int:
    return min(CHUNK, max(int(BLOCK.value), 1 << (num_tokens - 1).bit_length()))


def _fields_of(rows: SampledRows) -> list[Tensor]:
    return [rows.slot_fields[name] for name in ("temperature", "top_k", "top_p", "min_p")]


def _randomness_of(rows: SampledRows) -> tuple[Tensor, ...]:
    return rows.slots, rows.positions, rows.slot_fields["seed"], rows.slot_fields["child"]
