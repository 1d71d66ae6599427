"""Requests with more tokens than the split kernel takes: a program for M rows of queries.

Query blocks of a request follow each other, and requests too, so block b of the step belongs to the
last request whose first block is not behind it. A request has at most n // q + 1 blocks for its n
tokens, so `T // q + R` programs suffice, whatever the device finds. Blocks are taken from the last
to the first: of a long prompt the last see most, and what starts last should be short.

Tiles between those that some rows do not see, by the window before or by causality behind, are not
masked. In batch-invariant mode all are, which changes no bit, and the fixed splits of the decode
kernel are walked in their order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803, N806

from __future__ import annotations

import triton
import triton.language as tl

from quire_attention_backends.paged_launch import PagedCall
from quire_attention_backends.paged_sizes import TileSizes, group_size
from quire_attention_backends.paged_tiles import LOG2_E, finished, nothing, walk, walk_splits
from quire_attention_backends.split_plan import first_seen

LOG2 = tl.constexpr(LOG2_E)


def answer_prompts(call: PagedCall, sizes: TileSizes) -> None:
    """Answer the requests of a step that have more tokens, into `call.out`."""
    num_requests = len(call.step.seq_lens)
    queries = sizes.rows // group_size(call.shape)
    num_blocks = len(call.q) // queries + num_requests
    _answer_prompts[num_blocks, call.shape.num_kv_heads](
        *call.arguments(), num_requests, num_blocks, **call.constants(sizes)
    )


@triton.jit
def _request_of(query_start_ptr, num_requests, block, QUERIES: tl.constexpr):
    """Return the last request whose first block is not behind a block."""
    low, high = 0, num_requests
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(query_start_ptr + middle) // QUERIES + middle > block
        low = tl.where(is_behind, low, middle)
        high = tl.where(is_behind, middle, high)
    return low


@triton.jit(do_not_specialize=["table_stride", "window", "chunk", "num_requests", "num_blocks"])
def _answer_prompts(
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
    num_requests,
    num_blocks,
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
    QUERIES: tl.constexpr = M // G
    block, head = num_blocks - 1 - tl.program_id(0), tl.program_id(1)
    request = _request_of(query_start_ptr, num_requests, block, QUERIES)
    query_start = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - query_start
    first_query = (block - query_start // QUERIES - request) * QUERIES  # of the block
    if (num_queries <= SHORT) | (first_query >= num_queries):
        return
    computed = tl.load(seq_lens_ptr + request) - num_queries
    table_ptr += request.to(tl.int64) * table_stride
    row, d = tl.arange(0, M), tl.arange(0, DP)
    query = first_query + row // G
    is_row = (query < num_queries) & (row < QUERIES * G)
    positions = tl.where(is_row, computed + query, -1)
    of_token = query_start + query
    of_head = head * G + row % G
    is_number = is_row[:, None] & (d < D)[None, :]
    at = q_ptr + of_token[:, None].to(tl.int64) * q_stride + of_head[:, None] * D + d[None, :]
    q = tl.load(at, mask=is_number, other=0.0).to(TYPE)
    last_query = tl.minimum(first_query + QUERIES, num_queries) - 1
    end = computed + last_query + 1
    low = 0
    start = 0
    if HAS_REACH:
        low = first_seen(computed + first_query, window, chunk)
        start = low // N * N
    k_ptr = data_ptr + head * (S * D)
    v_ptr = k_ptr + K * S * D
    k_scales_ptr = scales_ptr + head * S
    v_scales_ptr = k_scales_ptr + K * S
    if IS_FIXED:
        acc, peak, mass = walk_splits(
            q, positions, start, end, low, -1, out_ptr, out_ptr, row, is_row, 0, table_ptr, k_ptr,
            v_ptr, k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, unit,
            cap_unit, TYPE, D, S, DP, M, N, SPLIT, KIND, BY_ROWS, HAS_CAP, HAS_REACH,
        )  # fmt: skip
    else:
        acc, peak, mass = nothing(M, DP)
        full_end = tl.maximum((computed + first_query + 1) // N * N, start)
        full_start = start
        if HAS_REACH:
            seen_by_all = first_seen(computed + last_query, window, chunk)
            full_start = tl.minimum((seen_by_all + N - 1) // N * N, full_end)
            acc, peak, mass = walk(
                q, acc, peak, mass, positions, start, full_start, low, table_ptr, k_ptr, v_ptr,
                k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, unit,
                cap_unit, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_REACH, True,
            )  # fmt: skip
        acc, peak, mass = walk(
            q, acc, peak, mass, positions, full_start, full_end, low, table_ptr, k_ptr, v_ptr,
            k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, unit, cap_unit,
            TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_REACH, False,
        )  # fmt: skip
        acc, peak, mass = walk(
            q, acc, peak, mass, positions, full_end, end, low, table_ptr, k_ptr, v_ptr,
            k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, unit, cap_unit,
            TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_REACH, True,
        )  # fmt: skip
    sinks = peak
    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + of_head).to(tl.float32) * LOG2
    answer = finished(acc, peak, mass, sinks, v_unit, HAS_SINKS)
    into = out_ptr + (of_token[:, None].to(tl.int64) * (K * G) + of_head[:, None]) * D
    tl.store(into + d[None, :], answer.to(out_ptr.dtype.element_ty), mask=is_number)
