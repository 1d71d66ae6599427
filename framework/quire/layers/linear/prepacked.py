"""Linear weights packed once at load for oneDNN's CPU matrix product.

oneDNN (behind `torch.ops.mkldnn`) uses the widest vectors of the CPU, and reads packed weights in
order; `functional.linear` calls MKL, which packs them again in every call. Measured in float32 on
one core of a Zen 5, in microseconds, for `[T, in] x [in, out]`:

    |  T,  in,   out | functional.linear | oneDNN, packed | oneDNN, dense |
    |   1, 256,  512 |                 7 |             14 |            15 |
    |   4, 256,  512 |                18 |             15 |            22 |
    |  16, 256,  512 |                47 |             28 |            34 |
    |   1, 256, 8192 |               127 |             98 |           108 |
    |  16, 256, 8192 |               835 |            290 |           440 |
    | 100, 256, 8192 |             4,845 |          1,867 |         2,129 |

So small weights are kept both dense and packed, because a call of oneDNN costs more than a small
product of few rows. The first product with a new number of rows takes about 400 microseconds
longer, because oneDNN then compiles its code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.interfaces.quantization import LinearMethod
from quire.layers.layer import frozen

SMALL_WEIGHT = 2**19  # elements; up to it, weights are kept both dense and packed
FEW_ROWS = 4  # with fewer rows, a small product is faster without oneDNN
MAX_COPY = 2**28  # elements of a shared weight, up to which it is copied to be packed


class Prepacked(LinearMethod):
    """A weight that is dense during loading, and packed afterwards; for CPUs.

    Args:
        dtype: Dtype of the weight.
        device: Device of the weight.
        is_shared: True if another layer (a tied embedding) reads the dense weight, so that it must
            be kept.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, is_shared: bool = False) -> None:
        self.dtype = dtype
        self.device = device
        self.is_shared = is_shared
        self._dense: Tensor | None = None  # of a small weight, for few rows
        self._packed: Tensor | None = None  # dense if the weight is shared and too large to copy

    @staticmethod
    def is_available(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether this build of torch can pack weights for this device."""
        is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return device.type == "cpu" and dtype == torch.float32 and is_built

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]` for loading."""
        weight = frozen((out_features, in_features), self.dtype, self.device)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the weight, and drop the dense one if it is not needed."""
        dense = layer.get_parameter("weight").detach()
        is_copied = not self.is_shared or dense.numel() <= MAX_COPY
        self._dense = dense if dense.numel() <= SMALL_WEIGHT else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(dense, None) if is_copied else dense
        if not self.is_shared:
            layer.register_parameter("weight", nn.Parameter(self._packed, requires_grad=False))
            layer.register_buffer("dense_weight", self._dense)  # so that its memory is counted
        elif is_copied:
            layer.register_buffer("packed_weight", self._packed)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        if self._dense is not None and x.shape[0] < FEW_ROWS:
            return functional.linear(x, self._dense)
        if self._packed is None:  # before `finish_loading`
            return functional.linear(x, layer.get_parameter("weight"))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return out
