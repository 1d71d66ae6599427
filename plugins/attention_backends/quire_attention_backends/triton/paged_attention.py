"""Attention kernel over a paged KV cache, launched for items of KV and for blocks of queries.

A program computes M query rows of one key/value head. For a request with one token or a few, it
computes one item of the split plan. It loads the item and the number of items together, then its
request's lengths and first pages together, then K: three memory latencies to the first tile. If a
request has one item, that program writes the output. If it has several, each leaves unnormalized
sums in float32, which `merge_parts` merges.

For a request with more tokens, a program computes one block of its queries. Blocks are processed
from the last to the first, all heads of a block together: the last blocks of a long prompt have the
most keys, and the work that starts last should be short. Only tiles that are partly hidden are
masked: by the window at the start, by causality at the end. In batch-invariant mode all tiles are
masked, which does not change the result, and the fixed splits of the items are computed in order.

K and V of the next tile are copied to shared memory while the current one is computed. After the
products of a tile, the page ids of the tile after the next are loaded, mostly from the L1 cache,
and their copies start. The heads of an item and the items of a list have neighbouring program ids:
programs without work come last, and programs that read the same page run together.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-redef"
# ruff: noqa: ANN001, ANN202, N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from quire_attention_backends.shared.split_plan import first_seen
from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall
from quire_attention_backends.triton.paged_merge import merge_parts
from quire_attention_backends.triton.paged_tiles import (
    as_operand,
    attend_splits,
    attend_tiles,
    empty_state,
    store_output,
    store_partial,
)


def attend(call: PagedCall, launch: LayerLaunch) -> None:
    """Compute attention for all requests of a step, into `call.out`."""
    plan, num_kv_heads, arguments = call.plan, call.shape.num_kv_heads, call.arguments(launch)
    _attend[len(plan.items) * num_kv_heads,](*arguments, plan.items, **launch.items)
    merge_parts(call, launch)
    if plan.max_blocks:
        _attend[plan.max_blocks * num_kv_heads,](*arguments, plan.blocks, **launch.blocks)


@triton.jit
def _request_of(blocks_ptr, num_requests, block):
    """Return the last request whose first block is at most `block`."""
    low, high = 0, num_requests
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(blocks_ptr + middle) > block
        low = tl.where(is_behind, low, middle)
        high = tl.where(is_behind, middle, high)
    return low


@triton.jit(do_not_specialize=["table_stride", "window", "chunk", "num_requests"])
def _attend(
    q_ptr,
    out_ptr,
    data_ptr,
    scales_ptr,
    sinks_ptr,
    slopes_ptr,
    table_ptr,
    query_start_ptr,
    seq_lens_ptr,
    acc_ptr,
    stats_ptr,
    count_ptr,
    q_stride,
    page_stride,
    scales_stride,
    table_stride,
    num_requests,
    window,
    chunk,
    score_factor,
    cap_factor,
    alibi_factor,
    out_factor,
    work_ptr,  # items or blocks of the plan
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
    HAS_ALIBI: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    IS_ITEM: tl.constexpr,
):
    QUERIES: tl.constexpr = M // G
    index, head = tl.program_id(0) // K, tl.program_id(0) % K
    if IS_ITEM:
        item_ptr = work_ptr + index * 4
        request, begin = tl.load(item_ptr), tl.load(item_ptr + 1)
        end, slot = tl.load(item_ptr + 2), tl.load(item_ptr + 3)
        count = tl.load(count_ptr)
    else:
        count = tl.load(work_ptr + num_requests)
    if index >= count:
        return
    first_query = 0  # of the block
    if not IS_ITEM:
        block = count - 1 - index
        request = _request_of(work_ptr, num_requests, block)
        first_query = (block - tl.load(work_ptr + request)) * QUERIES
    query_start = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - query_start
    computed = tl.load(seq_lens_ptr + request) - num_queries
    table_ptr += request.to(tl.int64) * table_stride
    row, d = tl.arange(0, M), tl.arange(0, DP)
    query = first_query + row // G
    num_own = tl.minimum(num_queries - first_query, QUERIES)  # queries of this program
    is_row = row < num_own * G
    positions = tl.where(is_row, computed + query, -1)
    of_token = query_start + query
    of_head = head * G + row % G
    is_valid = is_row[:, None] & (d < D)[None, :]
    at = q_ptr + of_token[:, None].to(tl.int64) * q_stride + of_head[:, None] * D + d[None, :]
    q = as_operand(tl.load(at, mask=is_valid, other=0.0), TYPE)
    if not IS_ITEM:
        begin, end = 0, computed + first_query + num_own
        slot: tl.constexpr = -1  # the program writes the output
    low, start = 0, begin
    if HAS_BOUNDS:
        low = first_seen(computed + first_query, window, chunk)
        start = tl.maximum(begin, low // N * N)
    k_ptr, k_scales_ptr = data_ptr + head * (S * D), scales_ptr + head * S
    cache = (
        table_ptr, k_ptr, k_ptr + K * S * D, k_scales_ptr, k_scales_ptr + K * S, page_stride,
        scales_stride,
    )  # fmt: skip
    slopes = positions  # not read
    if HAS_ALIBI:
        slopes = tl.load(slopes_ptr + of_head, mask=is_row, other=0.0) * alibi_factor
    bounds, factors = (window, chunk), (score_factor, cap_factor, slopes)
    slot_row = head * (SHORT * G) + row
    if IS_FIXED:
        acc, row_max, row_sum = attend_splits(
            q, positions, start, end, low, slot, acc_ptr, stats_ptr, slot_row, is_row,
            K * SHORT * G, cache, bounds, factors, TYPE, D, S, DP, M, N, SPLIT, KIND, BY_ROWS,
            HAS_CAP, HAS_ALIBI, HAS_BOUNDS,
        )  # fmt: skip
    elif IS_ITEM:
        acc, row_max, row_sum = attend_tiles(
            q, empty_state(M, DP), positions, start, end, low, cache, bounds, factors, TYPE, D, S,
            DP, N, KIND, BY_ROWS, HAS_CAP, HAS_ALIBI, HAS_BOUNDS, True,
        )  # fmt: skip
        if slot >= 0:
            into = slot.to(tl.int64) * (K * SHORT * G) + slot_row
            store_partial(acc_ptr, stats_ptr, into, is_row, acc, row_max, row_sum, D, DP)
    else:
        state = empty_state(M, DP)
        full_end = tl.maximum((computed + first_query + 1) // N * N, start)
        full_start = start
        if HAS_BOUNDS:
            seen_by_all = first_seen(end - 1, window, chunk)
            full_start = tl.minimum((seen_by_all + N - 1) // N * N, full_end)
            state = attend_tiles(
                q, state, positions, start, full_start, low, cache, bounds, factors, TYPE, D, S, DP,
                N, KIND, BY_ROWS, HAS_CAP, HAS_ALIBI, HAS_BOUNDS, True,
            )  # fmt: skip
        state = attend_tiles(
            q, state, positions, full_start, full_end, low, cache, bounds, factors, TYPE, D, S, DP,
            N, KIND, BY_ROWS, HAS_CAP, HAS_ALIBI, HAS_BOUNDS, False,
        )  # fmt: skip
        acc, row_max, row_sum = attend_tiles(
            q, state, positions, full_end, end, low, cache, bounds, factors, TYPE, D, S, DP, N,
            KIND, BY_ROWS, HAS_CAP, HAS_ALIBI, HAS_BOUNDS, True,
        )  # fmt: skip
    if slot < 0:
        store_output(
            out_ptr, sinks_ptr, of_token, of_head, is_valid, acc, row_max, row_sum, out_factor,
            K * G, D, DP, HAS_SINKS,
        )  # fmt: skip
