"""A linear layer's weight is loaded dense in the checkpoint's type, then packed and let go."""

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
    """Computes in float32 from a weight of fewer bits.

    Where the compiled kernels cannot be had, the numbers that would have been packed are kept in
    float32, and torch multiplies them: the same model, slower and larger.

    Args:
        keeping: What of each number is kept.
        memory: Where it is kept.
        has_rows: An embedding may look up rows.
        may_round: Bfloat16 may be kept of a wider tensor; otherwise the whole layer is kept in
            float32 then.
    """

    def __init__(
        self,
        keeping: Format,
        memory: PackedMemory,
        *,
        has_rows: bool = False,
        may_round: bool = True,
    ) -> None:
        self.keeping = keeping
        self._memory = memory
        self.has_rows = has_rows
        self._may_round = may_round
        self._packed: PackedWeight | None = None  # none where torch multiplies
        self._by_torch: LinearMethod = Unquantized(torch.float32, CPU)
        self._has_loaded = False
        self._is_embeddings = True  # an embedding's weight, which this one makes its own

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`, to be loaded."""
        self._is_embeddings = False
        dtype = torch.bfloat16 if self.keeping.only_bf16 else torch.float32
        _register(layer, torch.empty(out_features, in_features, dtype=dtype))

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:
        """Hold the weight in the narrowest type that has all numbers of the checkpoint's."""
        if self.keeping.only_bf16 and self._may_round:
            return
        held = layer.get_parameter("weight").detach()
        wanted = dtype if dtype in LOADED_TYPES else torch.float32
        if not self._has_loaded:
            self._has_loaded = True
            _register(layer, torch.empty(held.shape, dtype=wanted))
        elif wanted != held.dtype:
            _register(layer, held.to(torch.promote_types(wanted, held.dtype)))

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the weight."""
        dense = layer.get_parameter("weight").detach()
        if self.keeping.only_bf16 and not self._may_round and dense.dtype != torch.bfloat16:
            self.keeping = FLOAT32
        try:
            self._packed = PackedWeight(dense, self.keeping, self._memory.take)
        except NativeUnavailableError:
            _register(layer, self.keeping.keeps(dense.float()))
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
        return self._by_torch.apply(layer, self.keeping.takes(x))

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias` in one pass."""
        if self._packed is not None:
            return self._packed.multiply(x, bias)
        return self._by_torch.apply_with_bias(layer, self.keeping.takes(x), bias)

    def rows(self, layer: nn.Module, token_ids: Tensor) -> Tensor:
        """Return rows of the weight in float32."""
        if self._packed is not None:
            return self._packed.rows(token_ids)
        return functional.embedding(token_ids, layer.get_parameter("weight"))


def _register(layer: nn.Module, weight: Tensor) -> None:
    layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
