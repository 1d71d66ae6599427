"""Split-KV decode kernels for requests with one token or a few, and the merge of partial outputs.

A program computes one item of the split plan for one key/value head. It loads the item and the
number of items together, then its request's lengths and first pages together, then K: three memory
latencies to the first tile. K and V of the next tile are copied to shared memory while the current
one is computed. After the products of a tile, the page ids of the tile after the next are loaded,
mostly from the L1 cache, and their copies start. If a request has one item, that program writes the
output. If it has several, each leaves unnormalized sums in float32, and a second kernel, with a
program for each divided request and head, merges them weighted by their exponents.

The heads of an item and the items of a list have neighbouring program ids: programs without work
come last, and programs that read the same page run together.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl

from quire_attention_backends.shared.split_plan import first_seen
from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall
from quire_attention_backends.triton.paged_tiles import (
    LOG2_E,
    as_operand,
    attend_splits,
    attend_tiles,
    empty_state,
    merge,
    normalized,
    store_partial,
)

LOG2 = tl.constexpr(LOG2_E)


def attend_short(call: PagedCall, launch: LayerLaunch) -> None:
    """Compute attention for the requests of a step with few tokens, into `call.out`."""
    shape, plan, scratch = call.shape, call.plan, call.scratch
    _attend_short[len(plan.items) * shape.num_kv_heads,](
        *call.arguments(launch),
        plan.items,
        plan.count,
        scratch.acc,
        scratch.stats,
        **launch.short,
    )
    _merge_parts[(len(plan.divided) - 1) * shape.num_heads,](
        call.out,
        call.out if launch.layer.sinks is None else launch.layer.sinks,
        call.step.query_start,
        plan.parts,
        plan.divided,
        scratch.acc,
        scratch.stats,
        launch.out_factor,
        **launch.merging,
    )


@triton.jit(do_not_specialize=["table_stride", "window", "chunk"])
def _attend_short(
    q_ptr,
    out_ptr,
    data_ptr,
    scales_ptr,
    sinks_ptr,
    table_ptr,
    query_start_ptr,
    seq_lens_ptr,
    q_stride,
    page_stride,
    scales_stride,
    table_stride,
    window,
    chunk,
    score_factor,
    cap_factor,
    out_factor,
    items_ptr,
    count_ptr,
    acc_ptr,
    stats_ptr,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    DP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    SPLIT: tl.constexpr,
    SHORT: tl.constexpr,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    TYPE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    IS_FIXED: tl.constexpr,
):
    item, head = tl.program_id(0) // K, tl.program_id(0) % K
    item_ptr = items_ptr + item * 4
    request, begin = tl.load(item_ptr), tl.load(item_ptr + 1)
    end, slot = tl.load(item_ptr + 2), tl.load(item_ptr + 3)
    if item >= tl.load(count_ptr):
        return
    first_query = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - first_query
    computed = tl.load(seq_lens_ptr + request) - num_queries
    table_ptr += request.to(tl.int64) * table_stride
    row, d = tl.arange(0, M), tl.arange(0, DP)
    is_row = row < num_queries * G
    positions = tl.where(is_row, computed + row // G, -1)
    of_token = first_query + row // G
    of_head = head * G + row % G
    is_valid = is_row[:, None] & (d < D)[None, :]
    at = q_ptr + of_token[:, None].to(tl.int64) * q_stride + of_head[:, None] * D + d[None, :]
    q = as_operand(tl.load(at, mask=is_valid, other=0.0), TYPE)
    low = 0
    start = begin
    if HAS_BOUNDS:
        low = first_seen(computed, window, chunk)
        start = tl.maximum(begin, low // N * N)
    k_ptr = data_ptr + head * (S * D)
    k_scales_ptr = scales_ptr + head * S
    slot_row = head * (SHORT * G) + row
    if IS_FIXED:
        acc, row_max, row_sum = attend_splits(
            q, positions, start, end, low, slot, acc_ptr, stats_ptr, slot_row, is_row,
            K * SHORT * G, table_ptr, k_ptr, k_ptr + K * S * D, k_scales_ptr,
            k_scales_ptr + K * S, page_stride, scales_stride, window, chunk, score_factor,
            cap_factor, TYPE, D, S, DP, M, N, SPLIT, KIND, BY_ROWS, HAS_CAP, HAS_BOUNDS,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = empty_state(M, DP)
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, positions, start, end, low, table_ptr, k_ptr,
            k_ptr + K * S * D, k_scales_ptr, k_scales_ptr + K * S, page_stride, scales_stride,
            window, chunk, score_factor, cap_factor, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP,
            HAS_BOUNDS, True,
        )  # fmt: skip
        if slot >= 0:
            into = slot.to(tl.int64) * (K * SHORT * G) + slot_row
            store_partial(acc_ptr, stats_ptr, into, is_row, acc, row_max, row_sum, D, DP)
    if slot < 0:
        sinks = row_max
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + of_head).to(tl.float32) * LOG2
        output = normalized(acc, row_max, row_sum, sinks, out_factor, HAS_SINKS)
        into = out_ptr + (of_token[:, None].to(tl.int64) * (K * G) + of_head[:, None]) * D
        tl.store(into + d[None, :], output.to(out_ptr.dtype.element_ty), mask=is_valid)


@triton.jit
def _merge_parts(
    out_ptr,
    sinks_ptr,
    query_start_ptr,
    parts_ptr,
    divided_ptr,
    acc_ptr,
    stats_ptr,
    out_factor,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    SHORT: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    PARTS: tl.constexpr,
):
    divided_index, head = tl.program_id(0) // (K * G), tl.program_id(0) % (K * G)
    request = tl.load(divided_ptr + 1 + divided_index)
    if divided_index >= tl.load(divided_ptr):
        return
    num_parts = tl.load(parts_ptr + request * 2 + 1)
    first_part = tl.load(parts_ptr + request * 2)
    first_query = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - first_query
    d = tl.arange(0, DP)
    for query in range(0, num_queries):
        token = first_query + query
        row = (head // G) * (SHORT * G) + query * G + head % G
        acc, row_max, row_sum = empty_state(1, DP)
        for start in range(0, num_parts, PARTS):
            if IS_FIXED:
                for index in tl.static_range(PARTS):
                    part_index = start + index + tl.arange(0, 1)
                    is_part = part_index < num_parts
                    at = (first_part + part_index).to(tl.int64) * (K * SHORT * G) + row
                    is_valid = is_part[:, None] & (d < D)[None, :]
                    part = tl.load(acc_ptr + at[:, None] * D + d[None, :], mask=is_valid, other=0.0)
                    part_max = tl.load(stats_ptr + at * 2, mask=is_part, other=float("-inf"))
                    part_sum = tl.load(stats_ptr + at * 2 + 1, mask=is_part, other=0.0)
                    acc, row_max, row_sum = merge(acc, row_max, row_sum, part, part_max, part_sum)
            else:
                index = start + tl.arange(0, PARTS)
                is_part = index < num_parts
                at = (first_part + index).to(tl.int64) * (K * SHORT * G) + row
                is_valid = is_part[:, None] & (d < D)[None, :]
                part = tl.load(acc_ptr + at[:, None] * D + d[None, :], mask=is_valid, other=0.0)
                part_max = tl.load(stats_ptr + at * 2, mask=is_part, other=float("-inf"))
                part_sum = tl.load(stats_ptr + at * 2 + 1, mask=is_part, other=0.0)
                new_max = tl.max(part_max, 0)
                base = tl.where(new_max == float("-inf"), 0.0, new_max)
                weights = tl.exp2(part_max - base)
                part = tl.sum(part * weights[:, None], 0)
                acc, row_max, row_sum = merge(
                    acc, row_max, row_sum, part[None, :], new_max, tl.sum(part_sum * weights, 0)
                )
        sinks = row_max
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + head + tl.arange(0, 1)).to(tl.float32) * LOG2
        output = normalized(acc, row_max, row_sum, sinks, out_factor, HAS_SINKS)
        into = out_ptr + (token.to(tl.int64) * (K * G) + head) * D + d[None, :]
        tl.store(into, output.to(out_ptr.dtype.element_ty), mask=(d < D)[None, :])
