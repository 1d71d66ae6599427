"""LoRA adapters of a linear layer, in preallocated stacks of A and B matrices.

The slices of an adapter (of rank r, r rows each) are packed together in A, so one product with A is
enough for all slices of a merged layer, and its cost depends on the adapter's own rank, not on
`max_rank`. The scale is fused into B. A batch loops over the adapters that occur in it. Kernels do
so on the device, and read the stacks at fixed addresses, so a captured step uses newly loaded
adapters. On a CPU, a few tokens of each of many adapters are computed token by token, which reads
as much memory in fewer calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.layers.context import LayerContext
from quire.layers.linear.linear_slice import LinearSlice
from quire.layers.linear.row_tiles import Product, in_tiles, largest_tile, random_rows, refusal
from quire.native.layer_kernels import cpu_lora

FEW_TOKENS = 16  # per adapter; with more, matrix products are faster than token by token


@dataclass(frozen=True, slots=True)
class LoRASlice:
    """Position of one checkpoint matrix in the layer's outputs.

    Attributes:
        offset: First output of the matrix on this device.
        matrix: The matrix, and what this device has of it.
    """

    offset: int
    matrix: LinearSlice

    @property
    def end(self) -> int:
        """Output behind the last one."""
        return self.offset + len(self.matrix.rows)


@dataclass(frozen=True, slots=True)
class _AdapterSlice:
    """One adapted slice of one adapter: `out[:, start:stop] += h[:, first:last] @ b`."""

    start: int
    stop: int
    first: int
    last: int
    b: Tensor  # [r, stop - start]; a view of the stack


@dataclass(frozen=True, slots=True)
class _LoadedAdapter:
    """One adapter of this layer, as views of the stacks."""

    a: Tensor  # [sum of ranks, in]
    slices: tuple[_AdapterSlice, ...]


class LoRAStacks:
    """Memory for `max_loras` adapters of one linear layer.

    Args:
        slices: Slices of the layer in order, without gaps.
        columns: Inputs of this device.
        max_loras: Number of adapters.
        max_rank: Largest rank of each slice.
        context: Settings to build the layer with.

    Attributes:
        a: `[max_loras, num_slices * max_rank, in]`.
        b: `[max_loras, out, max_rank]`.
    """

    def __init__(
        self,
        slices: tuple[LoRASlice, ...],
        columns: range,
        max_loras: int,
        max_rank: int,
        context: LayerContext,
    ) -> None:
        self.slices = slices
        self.columns = columns
        self.batch_invariant = context.batch_invariant
        dtype, device = context.dtype, context.device
        rows, out_features = len(slices) * max_rank, slices[-1].end
        self.a = torch.zeros(max_loras, rows, len(columns), dtype=dtype, device=device)
        is_native = context.kernels == "native" and not context.batch_invariant
        shape = (max_loras, max_rank, out_features)
        if is_native:  # contiguous along the outputs, as the native kernel reads it
            self.b = torch.zeros(shape, dtype=dtype, device=device).mT
        else:
            self.b = torch.zeros(max_loras, out_features, max_rank, dtype=dtype, device=device)
        self._loaded: list[_LoadedAdapter | None] = [None] * max_loras
        self._kernels = _Kernels(self.a, self.b, slices) if context.kernels == "triton" else None
        self._add_by_token: cpu_lora.AddLoRA | None = None
        if is_native:
            output_ends = [part.end for part in slices]
            self._add_by_token = cpu_lora.AddLoRA(self.a, self.b.mT, output_ends)

    def set(self, index: int, modules: Sequence[AdapterModule | None]) -> None:
        """Load an adapter's matrices, one entry per slice; all None clears the index.

        Raises:
            RefusedError: In batch-invariant mode, if products of these ranks depend on the batch.
        """
        ends, adapted = [0], []
        for number, module in enumerate(modules):
            if module is not None:
                adapted.append(self._copy_slice(index, number, ends[-1], module))
            ends.append(adapted[-1].last if adapted else 0)
        if self._kernels is not None:
            self._kernels.set(index, ends)
            return
        if self._add_by_token is not None:
            self._add_by_token.set(index, ends)
        adapter = _LoadedAdapter(self.a[index, : ends[-1]], tuple(adapted)) if adapted else None
        if adapter is not None and self.batch_invariant:
            _check_products(adapter)
        self._loaded[index] = adapter

    def add(self, out: Tensor, x: Tensor, batch: AdapterBatch) -> None:
        """Add each row's adapter output to `out` `[T, out]`, in place; `x` is `[T, in]`.

        Raises:
            ValueError: The step is captured, and no kernel reads the adapters' indexes.
        """
        if self._kernels is not None:
            self._kernels.add(out, x, batch.index)
            return
        by_token = self._add_by_token
        num_adapters = 1 if batch.rows is None else len(batch.rows)
        if by_token and len(x) <= FEW_TOKENS * num_adapters and out.is_contiguous():
            by_token(out, x, batch.index)
            return
        if batch.rows is None:
            raise ValueError(f"the adapters of {len(x)} tokens cannot be added token by token")
        for index, rows in batch.rows:
            adapter = self._loaded[index]
            if adapter is None:
                continue
            add = _add_in_tiles if self.batch_invariant else _add
            if batch.covers_all:
                add(out, x, adapter)
            else:
                chosen = out.index_select(0, rows)
                add(chosen, x.index_select(0, rows), adapter)
                out.index_copy_(0, rows, chosen)

    def _copy_slice(
        self, index: int, number: int, first: int, module: AdapterModule
    ) -> _AdapterSlice:
        part, rank = self.slices[number], module.a.shape[0]
        last = first + rank
        a = module.a[:, self.columns.start : self.columns.stop]
        _copy_async(a, self.a[index, first:last])
        start, stop = part.offset, part.end
        b = self.b[index, start:stop, :rank]
        _copy_async(part.matrix.cut(module.b), b)
        b.mul_(module.scale)
        return _AdapterSlice(start, stop, first, last, b.t())


class _Kernels:
    """The stacks and the row spans of the adapters' slices on the device, for Triton kernels."""

    def __init__(self, a: Tensor, b: Tensor, slices: tuple[LoRASlice, ...]) -> None:
        from quire.kernels import lora_products as lora  # loads Triton

        self.shrink, self.expand = lora.shrink, lora.expand
        self.a, self.b = a, b
        self.spans = torch.zeros(len(a), len(slices) + 1, dtype=torch.int32, device=a.device)
        outputs = [(part.offset, part.end) for part in slices]
        tiles = lora.output_tiles(outputs)
        self.tiles = torch.tensor(tiles, dtype=torch.int32, device=a.device)

    def set(self, index: int, ends: list[int]) -> None:
        """Set the ends of an adapter's slices in `a`; the first entry is 0."""
        _copy_async(torch.tensor(ends, dtype=torch.int32), self.spans[index])

    def add(self, out: Tensor, x: Tensor, index: Tensor) -> None:
        hidden = self.shrink(x, self.a, self.spans, index)
        self.expand(out, hidden, self.b, self.spans, self.tiles, index)


def _copy_async(source: Tensor, target: Tensor) -> None:
    """Copy a tensor to device memory in stream order, without waiting for running steps.

    The copy is asynchronous because its source is page-locked memory, which torch does not reuse
    before the copy is done.
    """
    if target.device.type == "cuda" and source.device.type == "cpu":
        page_locked = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
        source = page_locked.copy_(source)
    target.copy_(source, non_blocking=True)


def _add(out: Tensor, x: Tensor, adapter: _LoadedAdapter) -> None:
    hidden = functional.linear(x, adapter.a)  # [n, sum of ranks]
    for part in adapter.slices:
        out[:, part.start : part.stop].addmm_(hidden[:, part.first : part.last], part.b)


def _add_in_tiles(out: Tensor, x: Tensor, adapter: _LoadedAdapter) -> None:
    """Do the same with products whose rows do not depend on each other."""
    hidden = in_tiles(_product_with(adapter.a.t()), x)
    for part in adapter.slices:
        own = hidden[:, part.first : part.last]
        out[:, part.start : part.stop] += in_tiles(_product_with(part.b), own)


def _check_products(adapter: _LoadedAdapter) -> None:
    """Check that an adapter's products are batch-invariant, as `InTiles` does for a weight."""
    products = [(adapter.a.t(), "A"), *((part.b, "B") for part in adapter.slices)]
    for matrix, side in products:  # [in, out]
        sample = random_rows(matrix.shape[0], matrix.dtype, matrix.device)
        if largest_tile(_product_with(matrix), sample) is None:
            raise refusal(f"an adapter's product with {side}", matrix.dtype)


def _product_with(matrix: Tensor) -> Product:  # [in, out]
    return lambda rows: rows @ matrix
