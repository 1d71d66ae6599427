"""Top-n-sigma filter: drop tokens whose logit is far below the largest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class TopNSigma(LogitsProcessor):
    """Logits processor that keeps tokens within `top_n_sigma` standard deviations of the best one.

    The standard deviation is that of the row's logits without masked ones, so the same tokens stay
    at any temperature. Tang et al., "Top-n-sigma: not all logits are you need", 2024.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["top_n_sigma"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of the other tokens to -inf."""
        n = rows.field("top_n_sigma")  # [N, 1]
        is_finite = logits.isfinite()
        count = is_finite.sum(-1, keepdim=True).clamp(min=1)
        mean = logits.masked_fill(~is_finite, 0.0).sum(-1, keepdim=True) / count
        deviation = (logits - mean).masked_fill(~is_finite, 0.0)
        sigma = (deviation.square().sum(-1, keepdim=True) / count).sqrt()
        lowest = logits.amax(-1, keepdim=True) - n * sigma
        return logits.masked_fill_((logits < lowest) & (n > 0), -math.inf)
