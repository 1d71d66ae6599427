"""Exclude top choices: now and then, drop all likely tokens but the least likely of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.uniform_noise import uniform

if TYPE_CHECKING:
    from torch import Tensor

PURPOSE_XTC = 1  # of the random number; see `uniform_noise`


class XTC(LogitsProcessor):
    """Logits processor that reads `xtc_probability` and `xtc_threshold`.

    With that probability, drawn for each position, of the tokens that reach the threshold only the
    least likely stays. With fewer than two such tokens nothing changes. The definition is that of
    text-generation-webui, "Exclude top choices (XTC)", 2024.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether no token is ever dropped."""
        return bool(fields["xtc_probability"] == 0 or fields["xtc_threshold"] > 0.5)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of the top choices to -inf."""
        probs = logits.softmax(-1)
        is_top = probs >= rows.field("xtc_threshold")
        least = probs.masked_fill(~is_top, math.inf).amin(-1, keepdim=True)
        is_chosen = uniform(rows, PURPOSE_XTC)[:, None] < rows.field("xtc_probability")
        return logits.masked_fill_(is_top & (probs > least) & is_chosen, -math.inf)
