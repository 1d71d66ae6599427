"""Top-k and top-p keep the likeliest tokens, so they share one sort: first k of them, then p.

Tokens are ranked by their logits. Top-k keeps the ranks below k. Top-p looks at the probabilities
of what is left, and keeps a token if those before it do not yet add up to p. What both keep ends at
some logit, and every token with at least that logit stays, so equal tokens stay or go together.
That is the order of transformers: temperature, top-k, top-p.
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

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of all other tokens to minus infinity."""
        limit, top_p = rows.field("top_k"), rows.field("top_p")  # [N, 1]
        limit = torch.where(limit > 0, limit, self.vocab_size)
        top_p = torch.where(top_p < 1, top_p.clamp(min=TINY), math.inf)  # one token always stays
        lowest = _lowest_kept(self._ranked(logits, rows), limit, top_p)
        is_off = (limit >= self.vocab_size) & (top_p > 1)
        return logits.masked_fill_(logits < lowest.masked_fill(is_off, -math.inf), -math.inf)

    def _ranked(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, M], falling
        """Return as many of the largest logits as the rows can keep."""
        limits = [fields["top_k"] for fields in rows.host_fields if not self.is_neutral(fields)]
        if limits and min(limits) > 0 and max(limits) <= MAX_PARTIAL:
            return logits.topk(min(max(limits), self.vocab_size)).values
        return logits.sort(dim=-1, descending=True).values


def _lowest_kept(ranked: Tensor, limit: Tensor, top_p: Tensor) -> Tensor:  # [N, 1]
    """Return the logit of the last token that both limits keep."""
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    is_within = ranks < limit  # [N, M]
    probs = ranked.masked_fill(~is_within, -math.inf).softmax(-1)
    before = probs.cumsum(-1) - probs
    num_kept = (is_within & (before < top_p)).sum(-1, keepdim=True)
    return ranked.gather(1, (num_kept - 1).clamp(min=0))
