"""Sampler step that changes nothing, and injects faults into each step that samples."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_faults.injection import injection


class FaultyStep(LogitsProcessor):
    """Logits processor of the point `sampler`."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return False: it runs for every request."""
        del fields
        return False

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] float32, both
        """Return the same logits, or NaN if they are to be corrupt."""
        del rows
        if injection().reach("sampler") == "corrupt":
            return torch.full_like(logits, torch.nan)
        return logits
