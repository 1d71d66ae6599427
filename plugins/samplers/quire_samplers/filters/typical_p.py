"""Locally typical sampling: keep the tokens whose surprise is closest to the entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.filters.entropy import entropy_of

if TYPE_CHECKING:
    from torch import Tensor


class TypicalP(LogitsProcessor):
    """Logits processor that keeps the most typical tokens that add up to `typical_p`.

    A token is the more typical, the closer its negative log probability is to the entropy of the
    distribution. Meister et al., "Locally typical sampling", 2022. The most typical token always
    stays, which need not be the most likely one.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["typical_p"] == 1)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of the other tokens to -inf."""
        share = rows.field("typical_p")  # [N, 1]
        logprobs = logits.log_softmax(-1)
        distance = (-logprobs - entropy_of(logprobs)).abs()
        distance = distance.masked_fill(logprobs == -math.inf, math.inf)
        ordered, order = distance.sort(-1)
        total = logprobs.exp().gather(1, order).cumsum(-1)
        last = (total < share).sum(-1, keepdim=True).clamp(max=logits.shape[1] - 1)
        is_dropped = (distance > ordered.gather(1, last)) & (share < 1)
        return torch.where(is_dropped, -math.inf, logits)
