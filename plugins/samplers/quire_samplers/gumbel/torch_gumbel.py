"""Gumbel-max sampling with torch's operators: the token with the largest logit plus hashed noise.

The noise is that of `gumbel` and `cpu_gumbel`, so the same seed gives the same tokens with any
kernels, up to rounding. Gumbel, "Statistical theory of extreme values", 1954.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.token_hash import shift_right_32, token_hash
from quire_samplers.uniform_noise import PURPOSE_SAMPLE, row_keys

if TYPE_CHECKING:
    from torch import Tensor

BELOW_ONE = 1 - 2.0**-24


class TorchGumbel(Sampler):
    """Sampler that reads `temperature`: rows with 0 are greedy, others sample by probability."""

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        return self._scores(logits, rows).argmax(-1)

    def sample_shard(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row and its token id, `[N]` both."""
        scores, columns = self._scores(logits, rows).max(-1)
        return scores, columns + rows.first_token_id

    def _scores(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, M], both
        """Return the logits, with noise in rows that are not greedy."""
        if rows.all_greedy:
            return logits
        noise = gumbel_noise(rows, logits.shape[1])
        return noise.mul_(rows.field("temperature") > 0).add_(logits)


def gumbel_noise(rows: SampledRows, num_tokens: int) -> Tensor:  # [N, M] float32
    """Return the noise of the tokens of a shard: finite, with the Gumbel distribution."""
    keys = row_keys(rows, PURPOSE_SAMPLE).unsqueeze(1)
    token_ids = torch.arange(num_tokens, device=keys.device) + rows.first_token_id
    return _unit(token_hash(keys, token_ids)).neg_().log1p_().neg_().log_().neg_()


def _unit(word: Tensor) -> Tensor:  # int32 -> float32
    """Return `(w + 1/2) / 2**32` of unsigned words, less than 1."""
    high, low = shift_right_32(word, 16).float(), (word & 0xFFFF).float()  # int32 has a sign
    return high.mul_(2.0**16).add_(low).add_(0.5).mul_(math.ldexp(1, -32)).clamp_(max=BELOW_ONE)
