"""Adapters live in fixed stacks beside a linear layer; a batch loops over the few that occur in it.

An adapter of rank r fills the first r rows of each slice's room, packed together, so one product
with A serves all slices of a merged layer, and small adapters cost what they are, not what the
largest may be. The scale is folded into B. Kernels loop on the device, over what stands there: an
adapter is loaded into the same memory that a captured step reads. On a CPU a few tokens of each of
many adapters are computed token by token, which reads as much and starts less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.layers.context import LayerContext
from quire.layers.linear.row_tiles import Product, in_tiles, largest_tile, random_rows, refusal
from quire.native.layer_kernels import cpu_lora

FEW_TOKENS = 16  # an adapter, up to which matrix products take as long as each token by itself


@dataclass(frozen=True, slots=True)
class LoRASlice:
    """Where the outputs of one checkpoint matrix stand.

    Attributes:
        offset: First of our rows.
        rows: This device's rows of the checkpoint's matrix.
    """

    offset: int
    rows: range


@dataclass(frozen=True, slots=True)
class _Share:
    """One adapted slice of one adapter: `out[:, start:stop] += h[:, first:last] @ b`."""

    start: int
    stop: int
    first: int
    last: int
    b: Tensor  # [r, stop - start]; a view of the stack


@dataclass(frozen=True, slots=True)
class _Placed:
    """One adapter in this layer, as views of the stacks."""

    a: Tensor  # [sum of ranks, in]
    shares: tuple[_Share, ...]


class LoRAStacks:
    """Room for `max_loras` adapters of one linear layer.

    Args:
        slices: One after the other, without a gap.
        columns: This device's inputs.
        max_loras: Places.
        max_rank: Of each slice.
        context: Where and how to build.

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
        rows, out_features = len(slices) * max_rank, sum(len(part.rows) for part in slices)
        self.a = torch.zeros(max_loras, rows, len(columns), dtype=dtype, device=device)
        is_native = context.kernels == "native" and not context.batch_invariant
        is_native = is_native and cpu_lora.is_available()
        shape = (max_loras, max_rank, out_features)
        if is_native:  # read along the outputs
            self.b = torch.zeros(shape, dtype=dtype, device=device).mT
        else:
            self.b = torch.zeros(max_loras, out_features, max_rank, dtype=dtype, device=device)
        self._placed: list[_Placed | None] = [None] * max_loras
        self._kernels = _Kernels(self.a, self.b, slices) if context.kernels == "triton" else None
        self._add_by_token: cpu_lora.AddLoRA | None = None
        if is_native:
            output_ends = [part.offset + len(part.rows) for part in slices]
            self._add_by_token = cpu_lora.AddLoRA(self.a, self.b.mT, output_ends)

    def set(self, index: int, modules: Sequence[AdapterModule | None]) -> None:
        """Place an adapter's matrices, one entry a slice; all None clears the place.

        Raises:
            RefusedError: In batch-invariant mode, for ranks whose products depend on the batch.
        """
        ends, shares = [0], []
        for number, module in enumerate(modules):
            if module is not None:
                shares.append(self._place(index, number, ends[-1], module))
            ends.append(shares[-1].last if shares else 0)
        if self._kernels is not None:
            self._kernels.set(index, ends)
            return
        if self._add_by_token is not None:
            self._add_by_token.set(index, ends)
        placed = _Placed(self.a[index, : ends[-1]], tuple(shares)) if shares else None
        if placed is not None and self.batch_invariant:
            _try(placed)
        self._placed[index] = placed

    def add(self, out: Tensor, x: Tensor, batch: AdapterBatch) -> None:
        """Add each row's adapter to `out` `[T, out]`, in place; `x` is `[T, in]`."""
        if self._kernels is not None:
            self._kernels.add(out, x, batch.index)
            return
        by_token = self._add_by_token
        if by_token and len(x) <= FEW_TOKENS * len(batch.rows) and out.is_contiguous():
            by_token(out, x, batch.index)
            return
        for index, rows in batch.rows:
            placed = self._placed[index]
            if placed is None:
                continue
            add = _add_in_tiles if self.batch_invariant else _add
            if batch.covers_all:
                add(out, x, placed)
            else:
                chosen = out.index_select(0, rows)
                add(chosen, x.index_select(0, rows), placed)
                out.index_copy_(0, rows, chosen)

    def _place(self, index: int, number: int, first: int, module: AdapterModule) -> _Share:
        part, rank = self.slices[number], module.a.shape[0]
        last = first + rank
        a = module.a[:, self.columns.start : self.columns.stop]
        _bring(a, self.a[index, first:last])
        start, stop = part.offset, part.offset + len(part.rows)
        b = self.b[index, start:stop, :rank]
        _bring(module.b[part.rows.start : part.rows.stop], b)
        b.mul_(module.scale)
        return _Share(start, stop, first, last, b.t())


class _Kernels:
    """The stacks as the kernels read them, and where an adapter's slices lie, on the device."""

    def __init__(self, a: Tensor, b: Tensor, slices: tuple[LoRASlice, ...]) -> None:
        from quire.kernels import lora_products as lora  # loads Triton

        self.shrink, self.expand = lora.shrink, lora.expand
        self.a, self.b = a, b
        self.spans = torch.zeros(len(a), len(slices) + 1, dtype=torch.int32, device=a.device)
        outputs = [(part.offset, part.offset + len(part.rows)) for part in slices]
        tiles = lora.output_tiles(outputs)
        self.tiles = torch.tensor(tiles, dtype=torch.int32, device=a.device)

    def set(self, index: int, ends: list[int]) -> None:
        """Say where in `a` the slices of an adapter end, the first entry being 0."""
        _bring(torch.tensor(ends, dtype=torch.int32), self.spans[index])

    def add(self, out: Tensor, x: Tensor, index: Tensor) -> None:
        hidden = self.shrink(x, self.a, self.spans, index)
        self.expand(out, hidden, self.b, self.spans, self.tiles, index)


def _bring(source: Tensor, target: Tensor) -> None:
    """Write a tensor to the device's memory, behind the steps under way and without waiting.

    A GPU copies from page-locked memory while the host goes on, and torch gives such memory away
    again only when the copy is done.
    """
    if target.device.type == "cuda" and source.device.type == "cpu":
        page_locked = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
        source = page_locked.copy_(source)
    target.copy_(source, non_blocking=True)


def _add(out: Tensor, x: Tensor, placed: _Placed) -> None:
    hidden = functional.linear(x, placed.a)  # [n, sum of ranks]
    for share in placed.shares:
        out[:, share.start : share.stop].addmm_(hidden[:, share.first : share.last], share.b)


def _add_in_tiles(out: Tensor, x: Tensor, placed: _Placed) -> None:
    """Do the same with products whose rows are independent of each other."""
    hidden = in_tiles(_product_with(placed.a.t()), x)
    for share in placed.shares:
        part = hidden[:, share.first : share.last]
        out[:, share.start : share.stop] += in_tiles(_product_with(share.b), part)


def _try(placed: _Placed) -> None:
    """Try an adapter's products, as `InTiles` does with a layer's own weight."""
    products = [(placed.a.t(), "A"), *((share.b, "B") for share in placed.shares)]
    for matrix, side in products:  # [in, out]
        sample = random_rows(matrix.shape[0], matrix.dtype, matrix.device)
        if largest_tile(_product_with(matrix), sample) is None:
            raise refusal(f"an adapter's product with {side}", matrix.dtype)


def _product_with(matrix: Tensor) -> Product:  # [in, out]
    return lambda rows: rows @ matrix
