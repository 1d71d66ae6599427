"""Min-p filter: drop tokens that are much less likely than the most likely one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class MinP(LogitsProcessor):
    """Logits processor that keeps tokens with at least `min_p` times the largest probability.

    Minh et al., "Turning up the heat: min-p sampling", 2024. No softmax is needed: a ratio of
    probabilities is a difference of logits.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["min_p"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of unlikely tokens to -inf."""
        lowest = logits.amax(-1, keepdim=True) + rows.field("min_p").log()  # log(0): all are kept
        return logits.masked_fill_(logits < lowest, -math.inf)
