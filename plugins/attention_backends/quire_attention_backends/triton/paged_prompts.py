"""Prefill kernel for requests with more tokens than the split kernel takes; M query rows a program.

The query blocks of all requests are numbered in order. The first block of each request is counted
on the device, once per step; block b belongs to the last request whose first block is at most b.
The host launches the exact number of blocks if it knows the step, otherwise the maximum for its T
tokens: a request of n tokens has at most n // q + 1 blocks. Blocks are processed from the last to
the first, all heads of a block together: the last blocks of a long prompt have the most keys, and
the work that starts last should be short.

Only tiles that are partly hidden are masked: by the window at the start, by causality at the end.
In batch-invariant mode all tiles are masked, which does not change the result, and the fixed splits
of the decode kernel are computed in order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803, N806

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire_attention_backends.shared.split_plan import first_seen
from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall
from quire_attention_backends.triton.paged_tiles import (
    LOG2_E,
    as_operand,
    attend_splits,
    attend_tiles,
    empty_state,
    normalized,
)

LOG2 = tl.constexpr(LOG2_E)
BLOCK_R = 256


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The query blocks of a step; the same for all layers.

    Attributes:
        starts: `[R + 1]` int32: the first block of each request, then the number of blocks.
        max_blocks: Upper limit of the number of blocks.
    """

    starts: Tensor
    max_blocks: int


def count_blocks(step: StepLayout, queries: int, short: int) -> PromptBlocks:
    """Count the query blocks of requests that have more than `short` tokens."""
    num_requests = len(step.seq_lens)
    starts = torch.empty(num_requests + 1, dtype=torch.int32, device=step.seq_lens.device)
    _count_blocks[1,](
        step.query_start,
        starts,
        num_requests,
        QUERIES=queries,
        SHORT=short,
        BLOCK_R=BLOCK_R,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return PromptBlocks(starts, _max_blocks(step, queries, short))


def _max_blocks(step: StepLayout, queries: int, short: int) -> int:
    """Return the number of blocks, or its maximum if only the device knows the step."""
    if step.query_lens_host:
        return sum(-(-length // queries) for length in step.query_lens_host if length > short)
    num_tokens = len(step.slot_mapping)
    return num_tokens // queries + min(len(step.seq_lens), num_tokens // (short + 1))


def attend_prompts(call: PagedCall, launch: LayerLaunch, blocks: PromptBlocks) -> None:
    """Compute attention for the requests of a step with more tokens, into `call.out`."""
    if not blocks.max_blocks:
        return
    _attend_prompts[blocks.max_blocks * call.shape.num_kv_heads,](
        *call.arguments(launch), blocks.starts, len(call.step.seq_lens), **launch.long
    )


@triton.jit(do_not_specialize=["num_requests"])
def _count_blocks(
    query_start_ptr,
    starts_ptr,
    num_requests,
    QUERIES: tl.constexpr,
    SHORT: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Write the index of the first block of each request, then the total number of blocks."""
    total = tl.zeros((), tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        is_there = row < num_requests
        first = tl.load(query_start_ptr + row, mask=is_there, other=0)
        num_queries = tl.load(query_start_ptr + row + 1, mask=is_there, other=0) - first
        blocks = tl.where(num_queries > SHORT, (num_queries + QUERIES - 1) // QUERIES, 0)
        tl.store(starts_ptr + row, total + tl.cumsum(blocks) - blocks, mask=is_there)
        total += tl.sum(blocks)
    tl.store(starts_ptr + num_requests, total)


@triton.jit
def _request_of(starts_ptr, num_requests, block):
    """Return the last request whose first block is at most `block`."""
    low, high = 0, num_requests
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(starts_ptr + middle) > block
        low = tl.where(is_behind, low, middle)
        high = tl.where(is_behind, middle, high)
    return low


@triton.jit(do_not_specialize=["table_stride", "window", "chunk", "num_requests"])
def _attend_prompts(
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
    starts_ptr,
    num_requests,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    DP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    SPLIT: tl.constexpr,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    TYPE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    IS_FIXED: tl.constexpr,
):
    QUERIES: tl.constexpr = M // G
    head = tl.program_id(0) % K
    block = tl.load(starts_ptr + num_requests) - 1 - tl.program_id(0) // K
    if block < 0:
        return
    request = _request_of(starts_ptr, num_requests, block)
    query_start = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - query_start
    first_query = (block - tl.load(starts_ptr + request)) * QUERIES  # first query of the block
    computed = tl.load(seq_lens_ptr + request) - num_queries
    table_ptr += request.to(tl.int64) * table_stride
    row, d = tl.arange(0, M), tl.arange(0, DP)
    query = first_query + row // G
    is_row = (query < num_queries) & (row < QUERIES * G)
    positions = tl.where(is_row, computed + query, -1)
    of_token = query_start + query
    of_head = head * G + row % G
    is_valid = is_row[:, None] & (d < D)[None, :]
    at = q_ptr + of_token[:, None].to(tl.int64) * q_stride + of_head[:, None] * D + d[None, :]
    q = as_operand(tl.load(at, mask=is_valid, other=0.0), TYPE)
    last_query = tl.minimum(first_query + QUERIES, num_queries) - 1
    end = computed + last_query + 1
    low = 0
    start = 0
    if HAS_BOUNDS:
        low = first_seen(computed + first_query, window, chunk)
        start = low // N * N
    k_ptr = data_ptr + head * (S * D)
    v_ptr = k_ptr + K * S * D
    k_scales_ptr = scales_ptr + head * S
    v_scales_ptr = k_scales_ptr + K * S
    if IS_FIXED:
        acc, row_max, row_sum = attend_splits(
            q, positions, start, end, low, -1, out_ptr, out_ptr, row, is_row, 0, table_ptr, k_ptr,
            v_ptr, k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk,
            score_factor, cap_factor, TYPE, D, S, DP, M, N, SPLIT, KIND, BY_ROWS, HAS_CAP,
            HAS_BOUNDS,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = empty_state(M, DP)
        full_end = tl.maximum((computed + first_query + 1) // N * N, start)
        full_start = start
        if HAS_BOUNDS:
            seen_by_all = first_seen(computed + last_query, window, chunk)
            full_start = tl.minimum((seen_by_all + N - 1) // N * N, full_end)
            acc, row_max, row_sum = attend_tiles(
                q, acc, row_max, row_sum, positions, start, full_start, low, table_ptr, k_ptr,
                v_ptr, k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk,
                score_factor, cap_factor, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_BOUNDS,
                True,
            )  # fmt: skip
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, positions, full_start, full_end, low, table_ptr, k_ptr, v_ptr,
            k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, score_factor,
            cap_factor, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_BOUNDS, False,
        )  # fmt: skip
        acc, row_max, row_sum = attend_tiles(
            q, acc, row_max, row_sum, positions, full_end, end, low, table_ptr, k_ptr, v_ptr,
            k_scales_ptr, v_scales_ptr, page_stride, scales_stride, window, chunk, score_factor,
            cap_factor, TYPE, D, S, DP, N, KIND, BY_ROWS, HAS_CAP, HAS_BOUNDS, True,
        )  # fmt: skip
    sinks = row_max
    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + of_head).to(tl.float32) * LOG2
    output = normalized(acc, row_max, row_sum, sinks, out_factor, HAS_SINKS)
    into = out_ptr + (of_token[:, None].to(tl.int64) * (K * G) + of_head[:, None]) * D
    tl.store(into + d[None, :], output.to(out_ptr.dtype.element_ty), mask=is_valid)
