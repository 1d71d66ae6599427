"""Temperature divides the logits; below 1 the likely tokens gain, above 1 the unlikely ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

MIN_TEMPERATURE = 1e-5  # below, large logits would overflow; nothing but the likeliest is left


class Temperature(LogitsProcessor):
    """Reads `temperature`; 0 means greedy and leaves the row as it is, for the draw to see."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether dividing would change nothing, or is not wanted."""
        return bool(fields["temperature"] in (0, 1))

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Divide each row by its temperature."""
        temperature = rows.field("temperature")  # [N, 1]
        divisor = torch.where(temperature > 0, temperature.clamp(min=MIN_TEMPERATURE), 1.0)
        return logits.div_(divisor)
