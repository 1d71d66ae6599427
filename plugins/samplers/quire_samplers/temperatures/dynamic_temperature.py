"""Dynamic temperature: low where the model is certain, high where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.filters.entropy import entropy_of

if TYPE_CHECKING:
    from torch import Tensor

MIN_TEMPERATURE = 1e-2


class DynamicTemperature(LogitsProcessor):
    """Logits processor that reads `dynatemp_low`, `dynatemp_high` and `dynatemp_exponent`.

    The logits are divided by low + (high - low) * h ** exponent, where h is the entropy of the row
    in relation to its maximum, from 0 to 1. The names and the definition are those of
    text-generation-webui, 2023. `temperature` is applied afterwards.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the logits are not divided."""
        return bool(fields["dynatemp_high"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Divide each row by its temperature."""
        low, high = rows.field("dynatemp_low"), rows.field("dynatemp_high")
        logprobs = logits.log_softmax(-1)
        num_possible = logprobs.isfinite().sum(-1, keepdim=True).clamp(min=2)
        share = (entropy_of(logprobs) / num_possible.log()).clamp(0, 1)
        span = (high - low) * share.pow(rows.field("dynatemp_exponent"))
        temperature = torch.where(high > 0, (low + span).clamp(min=MIN_TEMPERATURE), 1.0)
        return logits / temperature
