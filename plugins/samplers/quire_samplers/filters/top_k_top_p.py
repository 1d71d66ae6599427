"""Top-k and top-p filters with one common sort: first top-k, then top-p.

Tokens are ranked by their logits. Top-k keeps the ranks below k. Top-p uses the probabilities of
the remaining tokens, and keeps a token if those before it add up to less than p. Every token with
at least the logit of the last kept one is kept, so equal tokens are kept or dropped together. The
order is that of transformers: temperature, top-k, top-p.

The number of ranked tokens depends on the other rows of the batch, but the tokens that a row keeps
must not. So sums over ranks start at the most likely token, where further ranks do not change
earlier sums, and the sum over all tokens is that of log_softmax, which is separate for each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

MAX_PARTIAL = 512  # up to so many tokens a selection is much faster than a sort


class TopKTopP(LogitsProcessor):
    """Logits processor for `top_k` (0 or -1: off) and `top_p` (1: off)."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._can_look = device.type == "cpu"

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return not 0 < fields["top_k"] < self.vocab_size and fields["top_p"] >= 1

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of all other tokens to -inf."""
        limit, top_p = rows.field("top_k"), rows.field("top_p")  # [N, 1]
        limit = torch.where(limit > 0, limit, self.vocab_size)
        top_p = torch.where(top_p < 1, top_p, math.inf)
        lowest = self._lowest_kept(logits, limit, top_p, rows.host_fields)
        is_off = (limit >= self.vocab_size) & (top_p > 1)
        return logits.masked_fill_(logits < lowest.masked_fill(is_off, -math.inf), -math.inf)

    def _lowest_kept(
        self, logits: Tensor, limit: Tensor, top_p: Tensor, fields: Sequence[Mapping[str, Any]]
    ) -> Tensor:  # [N, 1]
        """Rank as few tokens as necessary, and return the logit of the last kept one.

        On a CPU a check whether they were enough costs nothing, so a sort of the whole vocabulary
        is the exception; on other devices the host must know beforehand.
        """
        count = min(self._enough(fields), self.vocab_size)
        ranked = logits.topk(count).values if count < self.vocab_size else _sorted(logits)
        total = _total(ranked, limit, logits, self.vocab_size)
        lowest, is_certain = _lowest(ranked, limit, top_p, total, self.vocab_size)
        if count == self.vocab_size or not self._can_look or bool(is_certain.all()):
            return lowest
        ranked = _sorted(logits)
        total = _total(ranked, limit, logits, self.vocab_size)
        return _lowest(ranked, limit, top_p, total, self.vocab_size)[0]

    def _enough(self, fields: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of tokens to rank, from the fields that the host knows."""
        limits = [each["top_k"] for each in fields if not self.is_neutral(each)]
        if limits and min(limits) > 0 and max(limits) <= MAX_PARTIAL:
            return int(max(limits))
        return MAX_PARTIAL if self._can_look else self.vocab_size


def _sorted(logits: Tensor) -> Tensor:  # [N, V]
    return logits.sort(dim=-1, descending=True).values


def _total(
    ranked: Tensor,  # [N, M], falling
    limit: Tensor,  # [N, 1]
    logits: Tensor,  # [N, V]
    vocab_size: int,
) -> Tensor:  # [N, 1]
    """Return the log of the mass that top-p refers to: of the first k, or of all tokens."""
    best = ranked[:, :1]
    sums = (ranked - best).exp().cumsum(-1)
    of_k = sums.gather(1, limit.clamp(max=ranked.shape[1]) - 1).log() + best
    of_all = best - logits.log_softmax(-1).amax(-1, keepdim=True)
    return torch.where(limit < vocab_size, of_k, of_all)


def _lowest(
    ranked: Tensor,  # [N, M], falling
    limit: Tensor,  # [N, 1]
    top_p: Tensor,  # [N, 1]
    total: Tensor,  # [N, 1]
    vocab_size: int,
) -> tuple[Tensor, Tensor]:  # [N, 1] both
    """Return the logit of the last token that both limits keep, and whether M ranks suffice."""
    count = ranked.shape[1]
    is_within = torch.arange(count, device=ranked.device) < limit  # [N, M]
    probs = (ranked - total).exp()
    sums = probs.cumsum(-1)
    num_kept = (is_within & (sums - probs < top_p)).sum(-1, keepdim=True)
    lowest = ranked.gather(1, (num_kept - 1).clamp(min=0))  # one token is always kept
    ends_by_p = (sums[:, -1:] >= top_p) | (top_p > 1)  # a top_p that is off has no end
    return lowest, (limit <= count) | ((limit >= vocab_size) & ends_by_p)
