"""Quadratic smoothing: flatten the likely tokens, and lower the unlikely ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class QuadraticSmoothing(LogitsProcessor):
    """Logits processor that reads `smoothing_factor` f and `smoothing_curve` c.

    With d = largest logit - logit, the new logit is the largest one minus
    f * ((3 - c) / 2 * d ** 2 + (c - 1) / 2 * d ** 3). The definition is that of
    text-generation-webui, "Quadratic sampling", 2024. The order of the tokens stays.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the logits stay as they are."""
        return bool(fields["smoothing_factor"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Replace the logits."""
        factor, curve = rows.field("smoothing_factor"), rows.field("smoothing_curve")
        largest = logits.amax(-1, keepdim=True)
        distance = largest - logits
        bent = (3 - curve) / 2 * distance.square() + (curve - 1) / 2 * distance.pow(3)
        smooth = largest - factor * bent.nan_to_num(nan=torch.inf, posinf=torch.inf)
        return torch.where((factor > 0) & logits.isfinite(), smooth, logits)
