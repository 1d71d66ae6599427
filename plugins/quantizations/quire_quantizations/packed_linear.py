"""Linear method that loads a dense weight, packs it and frees the dense one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.interfaces.quantization import LinearMethod
from quire.layers.linear.linear_layers import Unquantized
from quire.layers.linear.prepacked import Prepacked
from quire.native.library import NativeUnavailableError
from quire_quantizations.formats import FLOAT32, Format
from quire_quantizations.packed_memory import PackedMemory
from quire_quantizations.packed_weight import PackedWeight

CPU = torch.device("cpu")
LOADED_TYPES = (torch.bfloat16, torch.float16, torch.float32)


class PackedLinear(LinearMethod):
    """Products in float32 with a weight of fewer bits.

    Without the compiled kernels, the rounded values are stored in float32 and multiplied by torch:
    the same model, but slower and larger.

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
        self._packed: PackedWeight | None = None  # None where torch multiplies
        self._by_torch: LinearMethod = Unquantized(torch.float32, CPU)
        self._has_loaded = False
        self._is_embeddings = True  # False once this method creates its own weight

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register an empty `weight` `[out_features, in_features]` for loading."""
        self._is_embeddings = False
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
        """Pack the weight, or round it to the format if there are no compiled kernels."""
        dense = layer.get_parameter("weight").detach()
        if self.weight_format.is_bf16 and not self._may_round and dense.dtype != torch.bfloat16:
            self.weight_format = FLOAT32
        try:
            self._packed = PackedWeight(dense, self.weight_format, self._memory.allocate)
        except NativeUnavailableError:
            _register(layer, self.weight_format.round_weight(dense.float()))
            if Prepacked.is_available(torch.float32, CPU):
                self._by_torch = Prepacked(torch.float32, CPU, is_shared=self._is_embeddings)
            self._by_torch.finish_loading(layer)
            return
        self.is_batch_invariant = True
        layer.register_parameter("weight", None)
        layer.register_buffer("packed_weight", self._packed.memory)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        if self._packed is not None:
            return self._packed.multiply(x)
        return self._by_torch.apply(layer, self.weight_format.round_input(x))

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias` in one pass."""
        if self._packed is not None:
            return self._packed.multiply(x, bias)
        return self._by_torch.apply_with_bias(layer, self.weight_format.round_input(x), bias)

    def rows(self, layer: nn.Module, token_ids: Tensor) -> Tensor:
        """Return rows of the weight in float32."""
        if self._packed is not None:
            return self._packed.rows(token_ids)
        return functional.embedding(token_ids, layer.get_parameter("weight"))


def _register(layer: nn.Module, weight: Tensor) -> None:
    layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
