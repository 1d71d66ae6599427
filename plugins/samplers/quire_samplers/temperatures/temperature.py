"""Temperature: division of the logits; below 1 it sharpens the distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

MIN_TEMPERATURE = 1e-5  # below it, large logits would overflow; it is greedy anyway


class Temperature(LogitsProcessor):
    """Logits processor for `temperature`; 0 leaves the row unchanged for a greedy sampler."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the logits are not divided."""
        return bool(fields["temperature"] in (0, 1))

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Divide each row by its temperature."""
        temperature = rows.field("temperature")  # [N, 1]
        divisor = torch.where(temperature > 0, temperature.clamp(min=MIN_TEMPERATURE), 1.0)
        return logits.div_(divisor)
