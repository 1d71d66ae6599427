"""Linear layers: merged checkpoint matrices, tensor parallelism, quantization and LoRA.

A linear layer is a list of stacked checkpoint matrices, and each device has a shard of each of
them. Loading narrows each matrix to this device's rows and columns, and an adapter's matrices are
narrowed in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.interfaces.quantization import LayerSettings, LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.linear.linear_slice import LinearSlice
from quire.layers.linear.lora_stacks import LoRASlice, LoRAStacks
from quire.layers.linear.prepacked import Prepacked
from quire.layers.linear.row_tiles import InTiles
from quire.layers.parallel import shard, shard_kv_heads
from quire.layers.partial_sums import summed


class Unquantized(LinearMethod):
    """An unquantized weight in the layers' dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`."""
        weight = frozen((out_features, in_features), self.dtype, self.device)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        """Do nothing: there is nothing to repack."""

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        return functional.linear(x, layer.weight)  # type: ignore[arg-type]

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias`, in one launch on a GPU."""
        return functional.linear(x, layer.weight, bias)  # type: ignore[arg-type]


class ParallelLinear(Layer):
    """Base of the linear layers below.

    Args:
        name: Module path in the model; quantization methods may depend on it.
        num_columns: Number of inputs in the checkpoint.
        columns: Inputs of this device; if they are fewer, outputs are partial sums.
        slices: The checkpoint's matrices, in order.
        bias: Whether each matrix has a bias.
        context: Settings to build the layer with.
    """

    bias: Tensor | None

    def __init__(
        self,
        name: str,
        num_columns: int,
        columns: range,
        slices: tuple[LinearSlice, ...],
        *,
        bias: bool,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.name = name
        self.num_columns = num_columns
        self.columns = columns
        self.slices = {part.name: part for part in slices}
        self.offsets = _offsets(slices)
        self.context = context
        self.out_features = sum(len(part.rows) for part in slices)
        self.lora: LoRAStacks | None = None
        self.method = linear_method(name, context)
        self.method.create_weights(self, self.out_features, len(columns))
        vector = None if not bias else frozen((self.out_features,), context.dtype, context.device)
        self.register_parameter("bias", vector)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[rows]` for a vector and `[rows, columns]` for a matrix."""
        num_rows = self.slices[part].num_rows
        is_vector = self.get_parameter(parameter).dim() == 1
        return (num_rows,) if is_vector else (num_rows, self.num_columns)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Load this device's rows and columns of one checkpoint matrix."""
        row_shard = self.slices[part].cut(tensor)
        if tensor.dim() == 2:
            row_shard = row_shard[:, self.columns.start : self.columns.stop]
        offset = self.offsets[part]
        if parameter == "weight":
            return self.method.load(self, row_shard, offset)
        self.get_parameter(parameter)[offset : offset + len(row_shard)].copy_(row_shard)
        return None

    def load_quantized(self, parameter: str, weight: QuantizedWeight, part: str) -> None:
        """Pass this device's rows and columns of a quantized matrix to the quantization method."""
        if parameter != "weight":
            return super().load_quantized(parameter, weight, part)
        mine = self.slices[part].cut(torch.arange(weight.shape[0]))
        shard = weight.rows(mine).columns(self.columns)
        return self.method.load_quantized(self, shard, self.offsets[part])

    def finish_loading(self) -> None:
        """Repack the weight by the quantization method."""
        self.method.finish_loading(self)

    def enable_lora(self, max_loras: int, max_rank: int) -> None:
        """Allocate memory for adapters."""
        lora_slices = tuple(
            LoRASlice(self.offsets[part.name], part) for part in self.slices.values()
        )
        context = self.context
        self.lora = LoRAStacks(lora_slices, self.columns, max_loras, max_rank, context)

    def set_adapter(self, index: int, modules: Mapping[str, AdapterModule]) -> None:
        """Load an adapter's matrices to an index of the stacks; no matrices clear the index.

        `enable_lora` must have been called.

        Args:
            index: Adapter index.
            modules: Matrices by the last name of the checkpoint's module.
        """
        if self.lora is None:
            raise RuntimeError(f"{self.name} has no adapter memory; call enable_lora first")
        self.lora.set(index, [modules.get(name) for name in self.slices])

    def forward(self, x: Tensor, adapters: AdapterBatch | None = None) -> Tensor:
        """Return this device's outputs, slice by slice: `[T, in] -> [T, out / tp]`."""
        return self._project(x, adapters, self.bias)

    def _project(self, x: Tensor, adapters: AdapterBatch | None, bias: Tensor | None) -> Tensor:
        if bias is None:
            out = self.method.apply(self, x)
        else:
            out = self.method.apply_with_bias(self, x, bias)
        if adapters is not None and self.lora is not None:
            self.lora.add(out, x, adapters)
        return out


class MergedColumnParallelLinear(ParallelLinear):
    """Several matrices with the same input, each sharded by rows: gate and up in one product.

    Args:
        name: Module path in the model.
        in_features: Number of inputs.
        parts: Number of outputs of each matrix, by the last name of the checkpoint's module.
        bias: Whether each matrix has a bias.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        context: LayerContext,
    ) -> None:
        slices = tuple(
            LinearSlice(part, rows, shard(f"outputs of {name}", rows, context.tp))
            for part, rows in parts.items()
        )
        super().__init__(name, in_features, range(in_features), slices, bias=bias, context=context)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One matrix sharded by rows, so that each device has some of the outputs."""

    def __init__(
        self, name: str, in_features: int, out_features: int, *, bias: bool, context: LayerContext
    ) -> None:
        parts = {_last_name(name): out_features}
        super().__init__(name, in_features, parts, bias=bias, context=context)


class ReplicatedLinear(ParallelLinear):
    """One matrix that every device has whole: all outputs on every device, without a collective."""

    def __init__(
        self, name: str, in_features: int, out_features: int, *, bias: bool, context: LayerContext
    ) -> None:
        slices = (LinearSlice(_last_name(name), out_features, range(out_features)),)
        super().__init__(name, in_features, range(in_features), slices, bias=bias, context=context)


class QKVParallelLinear(ParallelLinear):
    """Query, key and value projections in one product, sharded by heads: `[T, (H + 2K) * D]`.

    With fewer key/value heads than devices, each head is replicated on several devices.

    Args:
        name: Module path in the model.
        hidden_size: Number of inputs.
        num_heads: Number of query heads of the whole model.
        num_kv_heads: Number of key/value heads of the whole model.
        head_dim: Elements per head.
        parts: The checkpoint's names of the projections: of queries, of keys, and of values unless
            those are the keys, `[T, (H + K) * D]`.
        qk_order: Checkpoint's index of each element of a query or key head, as `head_order` returns
            it for the rotary embedding; None: they stay in order.
        bias: Whether each projection has a bias.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"),
        qk_order: Sequence[int] | None = None,
        bias: bool,
        context: LayerContext,
    ) -> None:
        heads = shard("num_attention_heads", num_heads, context.tp)
        kv_heads = shard_kv_heads(num_kv_heads, context.tp)
        counts = (num_heads, num_kv_heads, num_kv_heads)
        own, orders = (heads, kv_heads, kv_heads), (qk_order, qk_order, None)
        slices = tuple(
            LinearSlice(part, count * head_dim, _head_rows(mine, head_dim), order)
            for part, count, mine, order in zip(parts, counts, own, orders, strict=False)
        )
        super().__init__(name, hidden_size, range(hidden_size), slices, bias=bias, context=context)


class RowParallelLinear(ParallelLinear):
    """One matrix sharded by columns: each device has some inputs, and the outputs are summed."""

    def __init__(
        self, name: str, in_features: int, out_features: int, *, bias: bool, context: LayerContext
    ) -> None:
        columns = shard(f"inputs of {name}", in_features, context.tp)
        slices = (LinearSlice(_last_name(name), out_features, range(out_features)),)
        super().__init__(name, in_features, columns, slices, bias=bias, context=context)
        self.tp = context.tp

    def forward(self, x: Tensor, adapters: AdapterBatch | None = None) -> Tensor:
        """Return all outputs, on every device: `[T, in / tp] -> [T, out]`."""
        if self.tp.size == 1:
            return super().forward(x, adapters)
        out = summed(self._project(x, adapters, None), self.context)
        return out if self.bias is None else out.add_(self.bias)


def linear_method(name: str, context: LayerContext) -> LinearMethod:
    """Return the quantization's method for a layer, or else the method without quantization.

    Args:
        name: Module path of the layer.
        context: Settings to build the layer with.
    """
    if context.quantization is not None:
        settings = LayerSettings(context.dtype, context.device, context.batch_invariant)
        chosen = context.quantization.for_layers(settings).linear_method(name)
        if chosen is not None:
            return _in_tiles_if_invariant(chosen, name, context)
    return plain_method(name, context)


def plain_method(name: str, context: LayerContext, is_shared: bool = False) -> LinearMethod:
    """Return the method for a layer whose weight is not quantized.

    Args:
        name: Module path of the layer for errors.
        context: Settings to build the layer with.
        is_shared: True if another layer reads the dense weight.
    """
    method: LinearMethod = Unquantized(context.dtype, context.device)
    if context.prepack:
        method = Prepacked(context.dtype, context.device, is_shared)
    return _in_tiles_if_invariant(method, name, context)


def _in_tiles_if_invariant(method: LinearMethod, name: str, context: LayerContext) -> LinearMethod:
    if not context.batch_invariant:
        return method
    return InTiles(method, name, context.dtype, context.device)


def _offsets(slices: tuple[LinearSlice, ...]) -> dict[str, int]:
    """Return the offset of each slice in this device's rows, by name."""
    offsets, offset = {}, 0
    for part in slices:
        offsets[part.name] = offset
        offset += len(part.rows)
    return offsets


def _head_rows(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _last_name(path: str) -> str:
    return path.rpartition(".")[2]
