"""Linear method that loads a dense weight, packs it and frees the dense one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quire.interfaces.quantization import GroupedProduct, GroupedWeight, LinearMethod
from quire_quantizations.formats import FLOAT32, Format
from quire_quantizations.grouped_codes import GroupedCodes
from quire_quantizations.packed_experts import PackedExperts
from quire_quantizations.packed_memory import PackedMemory
from quire_quantizations.packed_weight import PackedWeight

LOADED_TYPES = (torch.bfloat16, torch.float16, torch.float32)


class PackedLinear(LinearMethod):
    """Products in float32 with a weight of fewer bits.

    Args:
        weight_format: Format of the packed weight.
        memory: Memory of the packed weights.
        has_rows: Whether an embedding may look up rows.
        may_round: Whether a wider tensor may be stored as bfloat16; if not, the whole layer is
            stored in float32.
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
        self._has_loaded = False

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register an empty `weight` `[out_features, in_features]` for loading."""
        dtype = torch.bfloat16 if self.weight_format.is_bf16 else torch.float32
        _register(layer, torch.empty(out_features, in_features, dtype=dtype))

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:
        """Store the weight in the narrowest dtype that has all values of the checkpoint."""
        if self.weight_format.is_bf16 and self._may_round:
            return
        held = layer.get_parameter("weight").detach()
        needed = dtype if dtype in LOADED_TYPES else torch.float32
        if not self._has_loaded:
            self._has_loaded = True
            _register(layer, torch.empty(held.shape, dtype=needed))
        elif needed != held.dtype:
            _register(layer, held.to(torch.promote_types(needed, held.dtype)))

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the weight, and free the dense one."""
        dense = layer.get_parameter("weight").detach()
        if self.weight_format.is_bf16 and not self._may_round and dense.dtype != torch.bfloat16:
            self.weight_format = FLOAT32
        self._pack(layer, dense)

    def _pack(self, layer: nn.Module, weight: Tensor | GroupedCodes) -> None:
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


def _register(layer: nn.Module, weight: Tensor) -> None:
    layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
