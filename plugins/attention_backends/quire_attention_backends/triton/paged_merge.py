"""Merge of the partial outputs of divided requests, weighted by their exponents.

A program merges one head of one divided request.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl

from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall
from quire_attention_backends.triton.paged_tiles import (
    empty_state,
    load_partial,
    merge,
    store_output,
)


def merge_parts(call: PagedCall, launch: LayerLaunch) -> None:
    """Merge the partial outputs of a step into `call.out`."""
    plan, scratch = call.plan, call.scratch
    _merge_parts[(len(plan.divided) - 1) * call.shape.num_heads,](
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
    one, d = tl.arange(0, 1), tl.arange(0, DP)
    for query in range(0, num_queries):
        row = (head // G) * (SHORT * G) + query * G + head % G
        acc, row_max, row_sum = empty_state(1, DP)
        for start in range(0, num_parts, PARTS):
            if IS_FIXED:
                for offset in tl.static_range(PARTS):
                    index = start + offset + one
                    at = (first_part + index).to(tl.int64) * (K * SHORT * G) + row
                    part, part_max, part_sum = load_partial(
                        acc_ptr, stats_ptr, at, index < num_parts, D, DP
                    )
                    acc, row_max, row_sum = merge(acc, row_max, row_sum, part, part_max, part_sum)
            else:
                index = start + tl.arange(0, PARTS)
                at = (first_part + index).to(tl.int64) * (K * SHORT * G) + row
                part, part_max, part_sum = load_partial(
                    acc_ptr, stats_ptr, at, index < num_parts, D, DP
                )
                new_max = tl.max(part_max, 0)
                base = tl.where(new_max == float("-inf"), 0.0, new_max)
                weights = tl.exp2(part_max - base)
                part = tl.sum(part * weights[:, None], 0)
                acc, row_max, row_sum = merge(
                    acc, row_max, row_sum, part[None, :], new_max, tl.sum(part_sum * weights, 0)
                )
        store_output(
            out_ptr, sinks_ptr, first_query + query + one, head + one, (d < D)[None, :], acc,
            row_max, row_sum, out_factor, K * G, D, DP, HAS_SINKS,
        )  # fmt: skip
