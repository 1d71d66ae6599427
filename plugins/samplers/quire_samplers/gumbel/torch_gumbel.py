"""Gumbel-max sampling with torch's operators: the token with the largest logit plus hashed noise.

The noise is that of `gumbel` and `cpu_gumbel`, so the same seed gives the same tokens with any
kernels, up to rounding. Gumbel, "Statistical theory of extreme values", 1954.

Scores are computed in blocks that stay in a CPU's cache, and only the largest of each group of
columns is kept. The scores of the group that wins are computed again, to find the token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.token_hash import token_hash
from quire_samplers.uniform_noise import PURPOSE_SAMPLE, row_keys

if TYPE_CHECKING:
    from torch import Tensor

BELOW_ONE = 1 - 2.0**-24
GROUP = 64  # columns
CPU_BLOCK = 2**17  # scores: 512 KiB, and as much for each temporary tensor
DEVICE_BLOCK = 2**24  # a launch costs more than the memory


class TorchGumbel(Sampler):
    """Sampler that reads `temperature`: rows with 0 are greedy, others sample by probability."""

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        return logits.argmax(-1) if rows.all_greedy else best_column(logits, rows)[1]

    def sample_shard(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row and its token id, `[N]` both."""
        scores, columns = logits.max(-1) if rows.all_greedy else best_column(logits, rows)
        return scores, columns + rows.first_token_id


def best_column(logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:  # [N, M] -> [N] both
    """Return the largest score of each row and its column, the first one of several."""
    keys = row_keys(rows, PURPOSE_SAMPLE).unsqueeze(1)
    is_random = rows.field("temperature") > 0
    all_columns = torch.arange(logits.shape[1], device=logits.device)

    def scores_of(part: Tensor, columns: Tensor) -> Tensor:  # [N, C], and [C] or [N, C]
        noise = gumbel_noise(keys, columns + rows.first_token_id)
        return noise.mul_(is_random).add_(part)

    size = _block_size(logits)
    blocks = zip(torch.split(logits, size, 1), torch.split(all_columns, size), strict=True)
    best = torch.cat([_group_maxima(scores_of(part, columns)) for part, columns in blocks], 1)
    columns = best.argmax(-1, keepdim=True) * GROUP + all_columns[:GROUP]
    columns.clamp_(max=logits.shape[1] - 1)  # the last group may be short: its last one repeats
    scores, index = scores_of(logits.gather(1, columns), columns).max(-1, keepdim=True)
    return scores.squeeze(1), columns.gather(1, index).squeeze(1)


def gumbel_noise(
    keys: Tensor,  # [N, 1] int64, of the rows
    token_ids: Tensor,  # [M] or [N, M] int64
) -> Tensor:  # [N, M] float32
    """Return the noise of tokens: finite, with the Gumbel distribution."""
    return _unit(token_hash(keys, token_ids)).neg_().log1p_().neg_().log_().neg_()


def _block_size(logits: Tensor) -> int:
    """Return the number of columns in a block: whole groups."""
    num_scores = CPU_BLOCK if logits.device.type == "cpu" else DEVICE_BLOCK
    return max(1, num_scores // (GROUP * max(1, len(logits)))) * GROUP


def _group_maxima(scores: Tensor) -> Tensor:  # [N, C] -> [N, groups]
    """Return the largest score of each group of columns, or NaN if one is NaN."""
    num_whole = scores.shape[1] // GROUP
    whole, rest = scores[:, : num_whole * GROUP], scores[:, num_whole * GROUP :]
    maxima = whole.view(len(scores), num_whole, GROUP).amax(-1)
    return torch.cat((maxima, rest.amax(-1, keepdim=True)), 1) if rest.shape[1] else maxima


def _unit(word: Tensor) -> Tensor:  # int32 -> float32
    """Return `(w + 1/2) / 2**32` of unsigned words, less than 1."""
    unsigned = word.view(torch.uint32).float()
    return unsigned.add_(0.5).mul_(math.ldexp(1, -32)).clamp_(max=BELOW_ONE)
