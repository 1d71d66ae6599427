"""Weights are reordered once, at load, into the blocks that the CPU multiplies fastest.

oneDNN (behind `torch.ops.mkldnn`) uses the widest vectors that the CPU has, and reads packed
weights in order; `functional.linear` goes to MKL, which packs them again in every call. Measured
in float32 on one core of a Zen 5, in microseconds, for `[T, in] x [in, out]`:

    |  T,  in,   out | functional.linear | oneDNN, packed | oneDNN, dense |
    |   1, 256,  512 |                 7 |             14 |            15 |
    |   4, 256,  512 |                18 |             15 |            22 |
    |  16, 256,  512 |                47 |             28 |            34 |
    |   1, 256, 8192 |               127 |             98 |           108 |
    |  16, 256, 8192 |               835 |            290 |           440 |
    | 100, 256, 8192 |             4,845 |          1,867 |         2,129 |

So small weights are kept both ways, for a call of oneDNN costs more than a small product of few
rows. The first product with a new number of rows takes about 400 microseconds longer: oneDNN makes
its code then.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.interfaces.quantization import LinearMethod
from quire.layers.layer import frozen

SMALL_WEIGHT = 2**19  # numbers; kept both ways
FEW_ROWS = 4  # below it, a small product is quicker without oneDNN
MAX_COPY = 2**28  # numbers of a shared weight that may be kept twice


class Prepacked(LinearMethod):
    """A weight that is dense while it loads, and packed afterwards; for CPUs.

    Args:
        dtype: Of the weight.
        device: Where it lies.
        is_shared: Another layer reads the weight as it is (a tied embedding), so it must stay.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, is_shared: bool = False) -> None:
        self.dtype = dtype
        self.device = device
        self.is_shared = is_shared
        self._dense: Tensor | None = None  # for few rows
        self._packed: Tensor | None = None  # a shared one that is too large to copy stays dense

    @staticmethod
    def is_available(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether this build of torch can pack weights for this device."""
        is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return device.type == "cpu" and dtype == torch.float32 and is_built

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`, to be loaded."""
        weight = frozen((out_features, in_features), self.dtype, self.device)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the weight, and let go of the dense one if nobody else needs it."""
        dense = layer.get_parameter("weight").detach()
        is_copied = not self.is_shared or dense.numel() <= MAX_COPY
        self._dense = dense if dense.numel() <= SMALL_WEIGHT else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(dense, None) if is_copied else dense
        if not self.is_shared:
            layer.register_parameter("weight", nn.Parameter(self._packed, requires_grad=False))
            layer.register_buffer("dense_weight", self._dense)  # so that it is counted
        elif is_copied:
            layer.register_buffer("packed_weight", self._packed)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        if self._dense is not None and x.shape[0] < FEW_ROWS:
            return functional.linear(x, self._dense)
        if self._packed is None:  # not finished
            return functional.linear(x, layer.get_parameter("weight"))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return out
