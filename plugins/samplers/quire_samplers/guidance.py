"""Classifier-free guidance: what a prompt changes about the next token, multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class ClassifierFreeGuidance(LogitsProcessor):
    """Logits processor that reads `guidance_scale`, and the logits of each row's companion.

    With p the log probabilities after the prompt and q those after the companion's, a token gets
    q + scale * (p - q). Sanchez et al., "Stay on topic with Classifier-Free Guidance", 2023. As the
    first step it works on what the model computes, like that of transformers.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the scale is 1."""
        return bool(fields["guidance_scale"] == 1)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Move the logits of guided rows away from those of their companions."""
        if rows.guided is None or rows.companions is None:
            return logits
        scale = rows.field("guidance_scale")[rows.guided]  # [G, 1]
        given = logits[rows.guided]  # [G, V]
        own, other = given.log_softmax(-1), logits[rows.companions].log_softmax(-1)
        guided = (other + scale * (own - other)).masked_fill_(own == -math.inf, -math.inf)
        return logits.index_copy_(0, rows.guided, guided.where(scale != 1, given))
