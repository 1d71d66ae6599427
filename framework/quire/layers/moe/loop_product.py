"""Product of rows sorted by expert, one expert after another; for any quantization method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.interfaces.quantization import GroupedWeight


class LoopProduct:
    """One product for each expert that has rows.

    The number of rows of each expert is read by Python, so a step with such a product cannot be
    captured, and on a GPU the host waits for it.

    Args:
        weights: Weights of the experts.
        out_features: Number of outputs.
    """

    def __init__(self, weights: Sequence[GroupedWeight], out_features: int) -> None:
        self._weights = tuple(weights)
        self._out_features = out_features

    def __call__(
        self,
        x: Tensor,  # [S, in]
        ends: Tensor,  # [E] int64
    ) -> Tensor:  # [S, out]
        """Multiply each expert's rows by its weight, and add its bias; other rows are zeros."""
        out = torch.zeros(len(x), self._out_features, dtype=x.dtype, device=x.device)
        start = 0
        for weight, end in zip(self._weights, ends.tolist(), strict=True):
            if end > start:
                out[start:end] = _product(weight, x[start:end])
            start = end
        return out


def _product(weight: GroupedWeight, x: Tensor) -> Tensor:
    if weight.bias is None:
        return weight.method.apply(weight.layer, x)
    return weight.method.apply_with_bias(weight.layer, x, weight.bias)
