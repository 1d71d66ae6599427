"""Requests with one token, or a few: split by the plan, answered in parts, merged in order.

A program is one item of the plan for one key/value head. It loads the item and the number of items
together, then its request's numbers and first pages together, then K: three latencies to the first
tile. K and V of the next tile are copied to shared memory while this one is computed; behind its
products the pages of the tile after that are looked up, mostly in the L1 cache, and their copies
begin. One item of a request answers; several leave sums in float32, and a second kernel, a program
for each request that is divided and each of its heads, weighs them by their exponents.

The heads of an item, and the items of a list, are neighbours: programs that find nothing come last,
and those that read one page run together.
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
    as_factor,
    finished,
    keep,
    merge,
    nothing,
    walk,
    walk_splits,
)

LOG2 = tl.constexpr(LOG2_E)


def answer_short(call: PagedCall, launch: LayerLaunch) -> None:
    """Answer the requests of a step that have few tokens, into `call.out`."""
    shape, plan, scratch = call.shape, call.plan, call.scratch
    _answer_short[len(plan.items) * shape.num_kv_heads,](
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
        launch.v_unit,
        **launch.merging,
    )


@triton.jit(do_not_specialize=["table_stride", "window", "chunk"])
def _answer_short(
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
    unit,
    cap_unit,
    v_unit,
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
    HAS_REACH: tl.constexpr,
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
    is_number = is_row[:, None] & (d < D)[None, :]
    at = q_ptr + of_token[:, None].to(tl.int64) * q_stride + of_head[:, None] * D + d[None, :]
    q = as_factor(tl.load(at, mask=is_number, other=0.0), TYPE)
    low = 0
    start = begin
    if HAS_REACH:
        low = first_seen(computed, window, chunk)
        start = tl.maximum(begin, low // N * N)
    k_ptr = data_ptr + head * (S * D)
    k_scales_ptr = scales_ptr + head * S
    slot_row = head * (SHORT * G) + row
    if IS_FIXED:
        acc, peak, mass = walk_splits(
            q, positions, start, end, low, slot, acc_ptr, stats_ptr, slot_row, is_row,
            K * SHORT * G, table_ptr, k_ptr, k_ptr + K * S * D, k_scales_ptr,
            k_scales_ptr + K * S, page_stride, scales_stride, window, chunk, unit, cap_unit,
            TYPE, D, S, DP, M, N, SPLIT, KIND, BY_ROWS, HAS_CAP, HAS_REACH,
        )  # fmt: skip
    else:
        acc, peak, mass = nothing(M, DP)
        acc, peak, mass = walk(
            q, acc, peak, mass, positions, start, end, low, table_ptr, k_ptr, k_ptr + K * S * D,
            k_scales_ptr, k_scales_ptr + K * S, page_stride, scales_stride, window, chunk, unit,
            cap_unit, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_REACH, True,
        )  # fmt: skip
        if slot >= 0:
            into = slot.to(tl.int64) * (K * SHORT * G) + slot_row
            keep(acc_ptr, stats_ptr, into, is_row, acc, peak, mass, D, DP)
    if slot < 0:
        sinks = peak
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + of_head).to(tl.float32) * LOG2
        answer = finished(acc, peak, mass, sinks, v_unit, HAS_SINKS)
        into = out_ptr + (of_token[:, None].to(tl.int64) * (K * G) + of_head[:, None]) * D
        tl.store(into + d[None, :], answer.to(out_ptr.dtype.element_ty), mask=is_number)


@triton.jit
def _merge_parts(
    out_ptr,
    sinks_ptr,
    query_start_ptr,
    parts_ptr,
    divided_ptr,
    acc_ptr,
    stats_ptr,
    v_unit,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    SHORT: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    PARTS: tl.constexpr,
):
    place, head = tl.program_id(0) // (K * G), tl.program_id(0) % (K * G)
    request = tl.load(divided_ptr + 1 + place)
    if place >= tl.load(divided_ptr):
        return
    num_parts = tl.load(parts_ptr + request * 2 + 1)
    first_part = tl.load(parts_ptr + request * 2)
    first_query = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - first_query
    d = tl.arange(0, DP)
    for query in range(0, num_queries):
        token = first_query + query
        row = (head // G) * (SHORT * G) + query * G + head % G
        acc, peak, mass = nothing(1, DP)
        for start in range(0, num_parts, PARTS):
            if IS_FIXED:
                for index in tl.static_range(PARTS):
                    part_index = start + index + tl.arange(0, 1)
                    is_part = part_index < num_parts
                    at = (first_part + part_index).to(tl.int64) * (K * SHORT * G) + row
                    is_number = is_part[:, None] & (d < D)[None, :]
                    part = tl.load(
                        acc_ptr + at[:, None] * D + d[None, :], mask=is_number, other=0.0
                    )
                    part_peak = tl.load(stats_ptr + at * 2, mask=is_part, other=float("-inf"))
                    part_mass = tl.load(stats_ptr + at * 2 + 1, mask=is_part, other=0.0)
                    acc, peak, mass = merge(acc, peak, mass, part, part_peak, part_mass)
            else:
                index = start + tl.arange(0, PARTS)
                is_part = index < num_parts
                at = (first_part + index).to(tl.int64) * (K * SHORT * G) + row
                is_number = is_part[:, None] & (d < D)[None, :]
                part = tl.load(acc_ptr + at[:, None] * D + d[None, :], mask=is_number, other=0.0)
                part_peak = tl.load(stats_ptr + at * 2, mask=is_part, other=float("-inf"))
                part_mass = tl.load(stats_ptr + at * 2 + 1, mask=is_part, other=0.0)
                larger = tl.max(part_peak, 0)
                base = tl.where(larger == float("-inf"), 0.0, larger)
                weights = tl.exp2(part_peak - base)
                part = tl.sum(part * weights[:, None], 0)
                acc, peak, mass = merge(
                    acc, peak, mass, part[None, :], larger, tl.sum(part_mass * weights, 0)
                )
        sinks = peak
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + head + tl.arange(0, 1)).to(tl.float32) * LOG2
        answer = finished(acc, peak, mass, sinks, v_unit, HAS_SINKS)
        into = out_ptr + (token.to(tl.int64) * (K * G) + head) * D + d[None, :]
        tl.store(into, answer.to(out_ptr.dtype.element_ty), mask=(d < D)[None, :])
