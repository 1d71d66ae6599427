"""Gather of a step's inputs for a model and its attention, in one kernel launch.

The host sends five small values per request; token ids and block tables are on the device already:

    requests   [R]  slot, first position, length with the new tokens; [R + 1] query_start
    cells           int32 tables with one row per slot: token ids, then the block tables
    geometry   [G, 4]  per KV group: offset of its table in `cells`, blocks per row, tokens per
                       block, offset of its rows of this step in `block_rows`

Program (r, g) copies the tokens of request r and its blocks of group g. Program (R, g) writes zeros
for the padding tokens behind the last request. Programs of group 0 also write the outputs that all
groups share.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # cells that a program copies per iteration
GEOMETRY_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSource:
    """Tensors that a step's inputs are read from, at fixed addresses.

    Attributes:
        slots: `[R]` int64; the padding slot for padding rows.
        first_positions: `[R]` int32.
        query_start: `[R + 1]` int32.
        seq_lens: `[R]` int32; 0 for padding rows.
        adapters: `[R]` int32; -1 for none.
        cells: int32, all tables.
        tokens_per_row: Row length of the table of token ids, which begins at the first cell.
        geometry: `[G, 4]` int64.
    """

    slots: Tensor
    first_positions: Tensor
    query_start: Tensor
    seq_lens: Tensor
    adapters: Tensor
    cells: Tensor
    tokens_per_row: int
    geometry: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTarget:
    """Tensors that a step's inputs are written to, at fixed addresses.

    Attributes:
        input_ids: `[max T]` int64.
        positions: `[max T]` int64.
        adapter_index: `[max T]` int64; -1 for none.
        slot_mapping: `[G, max T]` int64.
        block_rows: int32, `[max R, max_blocks]` for each group; cells behind a request's blocks are
            not written.
    """

    input_ids: Tensor
    positions: Tensor
    adapter_index: Tensor
    slot_mapping: Tensor
    block_rows: Tensor


def gather_step(source: StepSource, target: StepTarget, num_requests: int, num_tokens: int) -> None:
    """Gather the inputs of `num_requests` requests and `num_tokens` tokens, padding included."""
    num_groups = len(source.geometry)
    _gather_kernel[(num_requests + 1, max(1, num_groups))](
        source.slots,
        source.first_positions,
        source.query_start,
        source.seq_lens,
        source.adapters,
        source.cells,
        source.geometry,
        target.input_ids,
        target.positions,
        target.adapter_index,
        target.slot_mapping,
        target.block_rows,
        source.tokens_per_row,
        target.slot_mapping.stride(0),
        num_requests,
        num_tokens,
        HAS_GROUPS=num_groups > 0,
        BLOCK=BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_requests", "num_tokens"])
def _gather_kernel(
    slots,
    first_positions,
    query_start,
    seq_lens,
    adapters,
    cells,
    geometry,
    input_ids,
    positions,
    adapter_index,
    slot_mapping,
    block_rows,
    tokens_per_row,
    mapping_stride,
    num_requests,
    num_tokens,
    HAS_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    group = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    begin = tl.load(query_start + request)
    mapping = slot_mapping + group.to(tl.int64) * mapping_stride
    if request == num_requests:
        for start in range(begin, num_tokens, BLOCK):
            token = start + lanes
            is_padding = token < num_tokens
            zeros = tl.zeros([BLOCK], tl.int64)
            if HAS_GROUPS:
                tl.store(mapping + token, zeros, mask=is_padding)
            if group == 0:
                tl.store(input_ids + token, zeros, mask=is_padding)
                tl.store(positions + token, zeros, mask=is_padding)
                tl.store(adapter_index + token, zeros - 1, mask=is_padding)
    else:
        slot = tl.load(slots + request)
        first = tl.load(first_positions + request)
        count = tl.load(query_start + request + 1) - begin
        if HAS_GROUPS:
            fields = geometry + group * 4
            row = cells + tl.load(fields) + slot * tl.load(fields + 1)
            block_size = tl.load(fields + 2).to(tl.int32)
            num_blocks = tl.cdiv(tl.load(seq_lens + request), block_size)
            copied = block_rows + tl.load(fields + 3) + request * tl.load(fields + 1)
            for start in range(0, num_blocks, BLOCK):
                column = start + lanes
                is_block = column < num_blocks
                tl.store(copied + column, tl.load(row + column, mask=is_block), mask=is_block)
        for start in range(0, count, BLOCK):
            is_token = start + lanes < count
            token = begin + start + lanes
            position = first + start + lanes
            if HAS_GROUPS:
                block = tl.load(row + position // block_size, mask=is_token).to(tl.int64)
                kv_slot = block * block_size + position % block_size
                tl.store(mapping + token, kv_slot, mask=is_token)
            if group == 0:
                ids = tl.load(cells + slot * tokens_per_row + position, mask=is_token)
                index = tl.load(adapters + request).to(tl.int64)
                tl.store(input_ids + token, ids.to(tl.int64), mask=is_token)
                tl.store(positions + token, position.to(tl.int64), mask=is_token)
                tl.store(adapter_index + token, tl.zeros([BLOCK], tl.int64) + index, mask=is_token)
