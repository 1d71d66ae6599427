"""Watermark: the logits of green tokens are raised, so that a completion has more of them.

Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, algorithm 2. What is green
is in `green_list`; `watermark_detector` finds the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.plugin import MAX_CONTEXT_WIDTH
from quire_samplers.watermark.green_list import context_seeds, is_green

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**15  # columns at a time: several tensors of four bytes a token


class Watermark(LogitsProcessor):
    """Logits processor that reads `watermark` and the fields whose names begin with it.

    A row with fewer known tokens than the context has is left as it is.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the watermark is off."""
        return not fields["watermark"] or bool(fields["watermark_bias"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, M], in place
        """Add the bias to the logits of green tokens."""
        widths = rows.field("watermark_context_width")  # [N, 1]
        keys = rows.field("watermark_key")
        seeds = context_seeds(keys.squeeze(1), previous_tokens(rows), widths.squeeze(1))
        ratios = rows.field("watermark_greenlist_ratio")
        is_on = rows.field("watermark") & (rows.positions.unsqueeze(1) >= widths)
        bias = rows.field("watermark_bias") * is_on
        for start in range(0, logits.shape[1], CHUNK):
            part = logits[:, start : start + CHUNK]
            token_ids = torch.arange(part.shape[1], device=logits.device)
            token_ids += start + rows.first_token_id
            part.add_(is_green(seeds.unsqueeze(1), token_ids, ratios) * bias)
        return logits


def previous_tokens(rows: SampledRows) -> Tensor:  # [N, MAX_CONTEXT_WIDTH] int64
    """Return the tokens before each row's position; the first token stands for missing ones."""
    back = torch.arange(MAX_CONTEXT_WIDTH, 0, -1, device=rows.positions.device)
    positions = (rows.positions.unsqueeze(1) - back).clamp(min=0)
    return rows.token_ids[rows.slots.unsqueeze(1), positions].long()
