"""Rows of a mixture of experts, sorted by expert: grouping, gathering, and sums of tokens' rows.

Pairs (token * k + index) are sorted by counting. A program counts the experts of a chunk of pairs;
one program turns the counts into the first row of each chunk and expert; then each pair's row is
that first row plus the number of pairs of the same expert before it in its chunk. So the order is
always the same: by expert, and then by pair.

A token's sum is computed by programs that read nothing of another token, in a fixed order.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PAIRS = 256  # per chunk
EARLIER = 64  # pairs that the pairs of a chunk are compared with at once
BLOCK = 1024  # elements of a row per program


def group_rows(experts: Tensor, own: range) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the pairs of experts `[T, k]` int64, of which this device has some.

    Returns:
        The pair of each row `[S]`, the row of each pair `[T, k]` or -1, and the number of rows up
        to and including each own expert's `[E]`; all int64. Pairs of rows behind the last are
        undefined.
    """
    experts = experts.contiguous()
    num_pairs, num_experts = experts.numel(), len(own)
    pairs = torch.empty(num_pairs, dtype=torch.int64, device=experts.device)
    rows = torch.empty_like(experts)
    ends = torch.empty(num_experts, dtype=torch.int64, device=experts.device)
    num_chunks = -(-num_pairs // PAIRS)
    bins = triton.next_power_of_2(num_experts + 1)  # the last ones: pairs of other devices
    counts = torch.empty(num_chunks, bins, dtype=torch.int32, device=experts.device)
    if num_chunks:
        _count_kernel[(num_chunks,)](
            experts, counts, num_pairs, own.start, num_experts, BINS=bins, PAIRS=PAIRS
        )
    _scan_kernel[(1,)](counts, ends, num_chunks, num_experts, BINS=bins)
    if num_chunks:
        _place_kernel[(num_chunks,)](
            experts, counts, pairs, rows, num_pairs, own.start, num_experts,
            BINS=bins, PAIRS=PAIRS, EARLIER=EARLIER, num_warps=8,
        )  # fmt: skip
    return pairs, rows, ends


def gather_rows(
    x: Tensor,  # [T, n]
    pairs: Tensor,  # [S]
    ends: Tensor,  # [E]
    weights: Tensor | None,  # [T, k] float32
) -> Tensor:  # [S, n]
    """Return the rows of x by pair, times the weights; rows behind the last are undefined."""
    (num_tokens, size), num_rows = x.shape, len(pairs)
    out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    if num_rows:
        pieces = -(-size // BLOCK)
        _gather_kernel[(num_rows * pieces,)](
            x, pairs, ends, x if weights is None else weights.contiguous(), out,
            len(ends), num_rows // num_tokens, size, x.stride(0), pieces,
            IS_WEIGHTED=weights is not None, BLOCK=BLOCK,
        )  # fmt: skip
    return out


def combine_rows(
    outputs: Tensor,  # [S, n]
    rows: Tensor,  # [T, k]
    weights: Tensor | None,  # [T, k] float32
) -> Tensor:  # [T, n]
    """Return the sum of each token's rows, times the weights, in float32 and rounded once."""
    (num_tokens, top_k), size = rows.shape, outputs.shape[1]
    out = torch.empty(num_tokens, size, dtype=outputs.dtype, device=outputs.device)
    if num_tokens:
        pieces = -(-size // BLOCK)
        _combine_kernel[(num_tokens * pieces,)](
            outputs, rows, outputs if weights is None else weights.contiguous(), out,
            top_k, size, pieces, IS_WEIGHTED=weights is not None, BLOCK=BLOCK,
            enable_fp_fusion=False,  # as the other implementations
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    experts_ptr,  # [S]
    counts_ptr,  # [chunks, BINS]
    num_pairs,
    first_expert,
    num_experts,
    BINS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    chunk = tl.program_id(0)
    pair = chunk * PAIRS + tl.arange(0, PAIRS)
    expert = _own_expert(experts_ptr, pair, num_pairs, first_expert, num_experts)
    tl.store(counts_ptr + chunk * BINS + tl.arange(0, BINS), tl.histogram(expert, BINS))


@triton.jit(do_not_specialize=["num_chunks"])
def _scan_kernel(
    counts_ptr,  # [chunks, BINS], becomes the first row of each chunk and expert
    ends_ptr,  # [E]
    num_chunks,
    num_experts,
    BINS: tl.constexpr,
):
    expert = tl.arange(0, BINS)
    total = tl.zeros((BINS,), tl.int32)
    for chunk in range(num_chunks):
        total += tl.load(counts_ptr + chunk * BINS + expert)
    total = tl.where(expert < num_experts, total, 0)
    end = tl.cumsum(total, 0)
    tl.store(ends_ptr + expert, end.to(tl.int64), mask=expert < num_experts)
    first = end - total
    for chunk in range(num_chunks):
        count = tl.load(counts_ptr + chunk * BINS + expert)
        tl.store(counts_ptr + chunk * BINS + expert, first)
        first += count


@triton.jit(do_not_specialize=["num_pairs"])
def _place_kernel(
    experts_ptr,  # [S]
    first_ptr,  # [chunks, BINS]
    pairs_ptr,  # [S]
    rows_ptr,  # [S]
    num_pairs,
    first_expert,
    num_experts,
    BINS: tl.constexpr,
    PAIRS: tl.constexpr,
    EARLIER: tl.constexpr,
):
    chunk = tl.program_id(0)
    pair = chunk * PAIRS + tl.arange(0, PAIRS)
    expert = _own_expert(experts_ptr, pair, num_pairs, first_expert, num_experts)
    num_before = tl.zeros((PAIRS,), tl.int32)
    for start in range(0, PAIRS, EARLIER):
        other = chunk * PAIRS + start + tl.arange(0, EARLIER)
        others = _own_expert(experts_ptr, other, num_pairs, first_expert, num_experts)
        is_before = (expert[:, None] == others[None, :]) & (pair[:, None] > other[None, :])
        num_before += tl.sum(is_before.to(tl.int32), 1)
    row = (tl.load(first_ptr + chunk * BINS + expert) + num_before).to(tl.int64)
    is_own = expert < num_experts
    is_pair = pair < num_pairs
    tl.store(rows_ptr + pair, tl.where(is_own, row, -1), mask=is_pair)
    tl.store(pairs_ptr + row, pair.to(tl.int64), mask=is_own & is_pair)


@triton.jit
def _own_expert(experts_ptr, pair, num_pairs, first_expert, num_experts):
    """Return the expert's number on this device; the number of own experts for any other."""
    expert = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=-1)
    own = expert.to(tl.int32) - first_expert
    is_own = (pair < num_pairs) & (own >= 0) & (own < num_experts)
    return tl.where(is_own, own, num_experts)


@triton.jit(do_not_specialize=["top_k"])
def _gather_kernel(
    x_ptr,  # [T, n]
    pairs_ptr,  # [S]
    ends_ptr,  # [E]
    weights_ptr,  # [S]
    out_ptr,  # [S, n]
    num_experts,
    top_k,
    size,
    x_stride,
    pieces,  # programs per row
    IS_WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    if row >= tl.load(ends_ptr + num_experts - 1):
        return
    column = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.load(pairs_ptr + row)
    is_inside = column < size
    x = tl.load(x_ptr + pair // top_k * x_stride + column, mask=is_inside)
    if IS_WEIGHTED:
        x = (x.to(tl.float32) * tl.load(weights_ptr + pair)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * size + column, x, mask=is_inside)


@triton.jit
def _combine_kernel(
    outputs_ptr,  # [S, n]
    rows_ptr,  # [T, k]
    weights_ptr,  # [T, k]
    out_ptr,  # [T, n]
    top_k,
    size,
    pieces,  # programs per row
    IS_WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) // pieces).to(tl.int64)
    column = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    total = tl.zeros((BLOCK,), tl.float32)
    for index in range(top_k):
        row = tl.load(rows_ptr + token * top_k + index)
        has_row = tl.full((BLOCK,), row, tl.int64) >= 0
        part = tl.load(outputs_ptr + row * size + column, mask=is_inside & has_row, other=0.0)
        part = part.to(tl.float32)
        if IS_WEIGHTED:
            part *= tl.load(weights_ptr + token * top_k + index)
        total += part
    tl.store(out_ptr + token * size + column, total.to(out_ptr.dtype.element_ty), mask=is_inside)
