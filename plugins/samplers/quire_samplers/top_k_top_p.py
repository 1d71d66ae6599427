"""Top-k and top-p keep the likeliest tokens, so they share one sort: first k of them, then p.

Tokens are ranked by logit, equal ones by id. Top-k keeps the ranks below k. Top-p looks at the
probabilities of what is left, and keeps a token if those before it do not yet add up to p; the
likeliest token always stays. That is the order of transformers: temperature, top-k, top-p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsStep, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

MAX_PARTIAL = 256  # up to so many, selecting the likeliest is much quicker than a sort
TINY = torch.finfo(torch.float32).tiny


class TopKTopP(LogitsStep):
    """Reads `top_k` (0 or -1: off) and `top_p` (1: off)."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether every token stays."""
        return not 0 < fields["top_k"] < self.vocab_size and fields["top_p"] >= 1

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N, V]
        """Set the logits of all other tokens to minus infinity."""
        limit, top_p = rows.field("top_k"), rows.field("top_p")  # [N, 1]
        limit = torch.where(limit > 0, limit, self.vocab_size)
        num_ranked = self._num_ranked(rows)
        if num_ranked < self.vocab_size:
            ranked, token_ids = logits.topk(num_ranked)  # [N, M], likeliest first
        else:
            ranked, token_ids = logits.sort(dim=-1, descending=True, stable=True)
        kept = _nucleus(ranked, limit, top_p)
        filtered = torch.full_like(logits, -math.inf).scatter_(1, token_ids, kept)
        is_off = (limit >= self.vocab_size) & (top_p >= 1)
        return torch.where(is_off, logits, filtered)

    def _num_ranked(self, rows: SampledRows) -> int:
        """Return how many tokens a row must rank: the largest top-k, if the host knows it."""
        limits = [fields["top_k"] for fields in rows.host_fields if not self.is_neutral(fields)]
        is_partial = bool(limits) and min(limits) > 0 and max(limits) <= MAX_PARTIAL
        return min(max(limits), self.vocab_size) if is_partial else self.vocab_size


def _nucleus(ranked: Tensor, limit: Tensor, top_p: Tensor) -> Tensor:
    """Return the sorted logits `[N, M]` with minus infinity behind the last token to keep."""
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    ranked = ranked.masked_fill(ranks >= limit, -math.inf)
    probs = ranked.softmax(-1)
    before = probs.cumsum(-1) - probs
    return ranked.masked_fill(before >= top_p.clamp(min=TINY), -math.inf)
