"""Names of multi-token-prediction layers, which predict draft tokens and are not part of the model.

Checkpoints have them behind the last layer (`model.layers.61` of 61 layers, as DeepSeek-V3) or
under a name of their own (`mtp.layers.0`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MTP = re.compile(r"(?:model\.)?(?:language_model\.)?mtp(?:_\w+)?\..+")
LAYER = re.compile(r"(?:\w+\.)*?layers\.(\d{1,9})\..+")
NUM_MTP_LAYERS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")


class DraftLayers:
    """Names of tensors of multi-token-prediction layers.

    Args:
        config: The checkpoint's config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        count = next((config[key] for key in NUM_MTP_LAYERS if config.get(key)), 0)
        first = config.get("num_hidden_layers")
        self._layers = range(0)
        if isinstance(first, int) and isinstance(count, int):
            self._layers = range(first, first + count)

    def __contains__(self, name: str) -> bool:
        """Return whether a tensor belongs to one of the layers."""
        layer = LAYER.fullmatch(name)
        return MTP.fullmatch(name) is not None or (
            layer is not None and int(layer[1]) in self._layers
        )
