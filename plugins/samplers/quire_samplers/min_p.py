"""Min-p drops the tokens that are much less likely than the likeliest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class MinP(LogitsProcessor):
    """Reads `min_p`: keeps tokens with at least this share of the largest probability.

    Minh et al., "Turning up the heat: min-p sampling", 2024. No softmax is needed: a share of
    probabilities is a difference of logits.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether every token stays."""
        return bool(fields["min_p"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of unlikely tokens to minus infinity."""
        lowest = logits.amax(-1, keepdim=True) + rows.field("min_p").log()  # log(0): all stay
        return logits.masked_fill_(logits < lowest, -math.inf)
