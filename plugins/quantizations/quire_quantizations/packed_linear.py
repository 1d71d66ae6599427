"""Linear method that packs the slices of a dense weight as the checkpoint has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.interfaces.quantization import GroupedProduct, GroupedWeight, LinearMethod
from quire_quantizations.formats import BFLOAT16, FLOAT16, FLOAT32, Format
from quire_quantizations.grouped_codes import GroupedCodes
from quire_quantizations.packed_experts import PackedExperts
from quire_quantizations.packed_memory import PackedMemory
from quire_quantizations.packed_weight import PackedWeight


class PackedLinear(LinearMethod):
    """Products with a packed weight, of any format.

    Args:
        weight_format: Format of the packed weight.
        memory: Memory of the packed weights.
        has_rows: Whether an embedding may look up rows.
        may_round: Whether weights may be rounded to the format; if not, a layer is stored in the
            narrowest format of floats that has all its values.
    """

    def __init__(
        self,
        weight_format: Format,
        memory: PackedMemory,
        *,
        has_rows: bool = False,
        may_round: bool = True,
    ) -> None:
        self.weight_format = weight_format
        self._memory = memory
        self.has_rows = has_rows
        self._may_round = may_round
        self._slices: dict[int, Tensor] = {}  # by first row

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`, which never gets memory."""
        dtype = torch.bfloat16 if self.weight_format.is_bf16 else torch.float32
        weight = torch.empty(out_features, in_features, dtype=dtype, device="meta")
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))

    def load(self, layer: nn.Module, weight: Tensor, first_row: int) -> None:
        """Keep the slice until all are there."""
        del layer
        self._slices[first_row] = weight

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the slices.

        Raises:
            RuntimeError: Rows were not loaded.
        """
        slices, self._slices = self._slices, {}
        dense = [slices[first_row] for first_row in sorted(slices)]
        num_rows, needed = sum(map(len, dense)), len(layer.get_parameter("weight"))
        if num_rows != needed:
            raise RuntimeError(f"{num_rows} of {needed} rows of a linear layer were loaded")
        if not self._may_round:
            self.weight_format = self._exact_format({rows.dtype for rows in dense})
        self._pack(layer, dense)

    def _exact_format(self, types: set[torch.dtype]) -> Format:
        if types == {torch.bfloat16}:
            return self.weight_format if self.weight_format.is_bf16 else BFLOAT16
        return FLOAT16 if types == {torch.float16} else FLOAT32

    def _pack(self, layer: nn.Module, weight: Sequence[Tensor] | GroupedCodes) -> None:
        self._packed = PackedWeight(weight, self.weight_format, self._memory.allocate)
        self.is_batch_invariant = True
        layer.register_parameter("weight", None)
        layer.register_buffer("packed_weight", self._packed.memory)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        del layer
        return self._packed.multiply(x)

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias` in one pass."""
        del layer
        return self._packed.multiply(x, bias)

    def grouped_product(self, weights: Sequence[GroupedWeight]) -> GroupedProduct | None:
        """Return one product with the packed weights, if all of them have one format."""
        methods = [one.method for one in weights if isinstance(one.method, PackedLinear)]
        biases = [one.bias for one in weights if one.bias is not None]
        formats = {method.weight_format for method in methods}
        if len(methods) < len(weights) or len(formats) > 1:
            return None
        return PackedExperts([method._packed for method in methods], biases)

    def rows(self, layer: nn.Module, token_ids: Tensor) -> Tensor:
        """Return rows of the weight in float32."""
        del layer
        return self._packed.rows(token_ids)
