"""LoRA products for a batch with many adapters: two kernel launches per layer.

The first launch multiplies by A, the second multiplies by B and adds the result. Each works on
tiles of 16 tokens, and loops over the adapters that occur in its tile. The mapping of A's rows to
adapters is on the device, so a captured step uses the adapters that are loaded when it is replayed:

    a      [max_loras, rows, in]     the adapter's slices, concatenated from row 0 on
    spans  [max_loras, slices + 1]   slice s has rows spans[s] to spans[s + 1] of a
    b      [max_loras, out, rank]    column j belongs to row spans[s] + j of a
    tiles  [n, 3]                    ranges of outputs: first, end, and the index of their slice

A token's result does not depend on the other tokens, to the bit: the rows of a tile are
independent, and partial sums are added in a fixed order. Rows without an adapter are not written.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 16  # tokens per tile; the minimum of tensor cores
OUTPUTS = 64  # outputs per tile
RANKS = {2: 32, 4: 16}  # rows of A or columns of B per product, by bytes of an element
COLUMNS = {2: 128, 4: 32}  # columns of A and of x per product, by bytes of an element
PART_COLUMNS = 1024  # columns per part: A is divided along its rows, to have more programs

NO_ADAPTER = tl.constexpr(2**31)  # above every adapter index


def output_tiles(slices: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Divide the outputs of each slice, given as (first, end), into tiles for one program each."""
    return [
        (first, min(first + OUTPUTS, stop), number)
        for number, (start, stop) in enumerate(slices)
        for first in range(start, stop, OUTPUTS)
    ]


def shrink(
    x: Tensor,  # [T, in]
    a: Tensor,  # [max_loras, rows, in]
    spans: Tensor,  # [max_loras, slices + 1] int32
    index: Tensor,  # [T] int64: adapter index, or -1
) -> Tensor:  # [parts, T, rows] float32
    """Return `x @ a[index].T` as partial sums, each over a part of the columns.

    Elements beyond the rows of a token's adapter are undefined.
    """
    (num_tokens, num_columns), num_rows = x.shape, a.shape[1]
    num_parts = -(-num_columns // PART_COLUMNS)
    hidden = torch.empty(num_parts, num_tokens, num_rows, dtype=torch.float32, device=x.device)
    ranks = RANKS[x.itemsize]
    grid = (-(-num_tokens // TOKENS), -(-num_rows // ranks), num_parts)
    _shrink_kernel[grid](
        x,
        a,
        spans,
        index,
        hidden,
        num_tokens,
        num_rows,
        num_columns,
        spans.shape[1] - 1,
        x.stride(0),
        TOKENS=TOKENS,
        RANKS=ranks,
        COLUMNS=COLUMNS[x.itemsize],
        PART_COLUMNS=PART_COLUMNS,
        num_warps=4,
        num_stages=3,
        enable_fp_fusion=True,
    )
    return hidden


def expand(
    out: Tensor,  # [T, out], written in place
    hidden: Tensor,  # [parts, T, rows] float32, as returned by `shrink`
    b: Tensor,  # [max_loras, out, rank]
    spans: Tensor,  # [max_loras, slices + 1] int32
    tiles: Tensor,  # [n, 3] int32
    index: Tensor,  # [T] int64
) -> None:
    """Add each token's `hidden @ b[index].T` to its outputs, slice by slice."""
    num_parts, num_tokens, num_rows = hidden.shape
    _expand_kernel[(-(-num_tokens // TOKENS), len(tiles))](
        out,
        hidden,
        b,
        spans,
        tiles,
        index,
        num_tokens,
        num_rows,
        num_parts,
        b.shape[1],
        b.shape[2],
        spans.shape[1] - 1,
        out.stride(0),
        TOKENS=TOKENS,
        OUTPUTS=OUTPUTS,
        RANKS=RANKS[b.itemsize],
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _shrink_kernel(
    x_ptr,
    a_ptr,
    spans_ptr,
    index_ptr,
    hidden_ptr,
    num_tokens,
    num_rows,
    num_columns,
    num_slices,
    x_stride,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART_COLUMNS: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    first_row, part = tl.program_id(1) * RANKS, tl.program_id(2)
    index = tl.load(index_ptr + token, mask=token < num_tokens, other=-1)
    token = token.to(tl.int64)
    row = first_row + tl.arange(0, RANKS)
    column = part * PART_COLUMNS + tl.arange(0, COLUMNS)
    adapter = _next_adapter(index, -1)
    while adapter < NO_ADAPTER:
        uses_it = index == adapter
        rank = tl.load(spans_ptr + adapter * (num_slices + 1) + num_slices)
        if first_row < rank:
            a_at = a_ptr + adapter * num_rows * num_columns
            total = tl.zeros((TOKENS, RANKS), tl.float32)
            for start in range(0, PART_COLUMNS, COLUMNS):
                here = start + column
                x = tl.load(
                    x_ptr + token[:, None] * x_stride + here[None, :],
                    mask=uses_it[:, None] & (here < num_columns)[None, :],
                    other=0.0,
                )
                a = tl.load(
                    a_at + (row * num_columns)[None, :] + here[:, None],
                    mask=(row < rank)[None, :] & (here < num_columns)[:, None],
                    other=0.0,
                )
                total = tl.dot(x, a, total, input_precision="ieee")
            tl.store(
                hidden_ptr + (part * num_tokens + token)[:, None] * num_rows + row[None, :],
                total,
                mask=uses_it[:, None] & (row < rank)[None, :],
            )
        adapter = _next_adapter(index, adapter)


@triton.jit(do_not_specialize=["num_tokens"])
def _expand_kernel(
    out_ptr,
    hidden_ptr,
    b_ptr,
    spans_ptr,
    tiles_ptr,
    index_ptr,
    num_tokens,
    num_rows,
    num_parts,
    num_outputs,
    max_rank,
    num_slices,
    out_stride,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RANKS: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    index = tl.load(index_ptr + token, mask=token < num_tokens, other=-1)
    token = token.to(tl.int64)
    tile_at = tiles_ptr + tl.program_id(1) * 3
    output = tl.load(tile_at) + tl.arange(0, OUTPUTS)
    is_ours = output < tl.load(tile_at + 1)
    slice_number = tl.load(tile_at + 2)
    dtype = b_ptr.dtype.element_ty
    adapter = _next_adapter(index, -1)
    while adapter < NO_ADAPTER:
        uses_it = index == adapter
        span_at = spans_ptr + adapter * (num_slices + 1) + slice_number
        first = tl.load(span_at)
        rank = tl.load(span_at + 1) - first
        if rank > 0:
            b_at = b_ptr + adapter * num_outputs * max_rank
            total = tl.zeros((TOKENS, OUTPUTS), tl.float32)
            for start in range(0, rank, RANKS):
                here = start + tl.arange(0, RANKS)
                is_rank = here < rank
                mask = uses_it[:, None] & is_rank[None, :]
                hidden = tl.zeros((TOKENS, RANKS), tl.float32)
                for part in range(num_parts):
                    at = (part * num_tokens + token)[:, None] * num_rows + (first + here)[None, :]
                    hidden += tl.load(hidden_ptr + at, mask=mask, other=0.0)
                b = tl.load(
                    b_at + (output * max_rank)[None, :] + here[:, None],
                    mask=is_ours[None, :] & is_rank[:, None],
                    other=0.0,
                )
                total = tl.dot(hidden.to(dtype), b, total, input_precision="ieee")
            out_at = out_ptr + token[:, None] * out_stride + output[None, :]
            mask = uses_it[:, None] & is_ours[None, :]
            old = tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_at, (old + total).to(out_ptr.dtype.element_ty), mask=mask)
        adapter = _next_adapter(index, adapter)


@triton.jit
def _next_adapter(index, adapter):
    """Return the next larger adapter index that a token of the tile uses."""
    return tl.min(tl.where(index > adapter, index, NO_ADAPTER), 0)
