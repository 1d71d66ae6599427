"""MLA kernels: split-KV attention with latents that are read once, as keys and as values.

A program computes one item of a split plan, a run of the tokens that a row of the step attends to,
for M of the row's heads. A tile is N rows of the cache. Its first C columns are multiplied by the
queries and then by the softmax weights without a second load. Several programs of one row run at
the same time, so the later ones find the tile in the L2 cache.

`score_factor`, the layer's scale times log2(e), turns scores into exponents to base 2.

    row of the cache   | latent: C elements, key and value | rotated key: P elements |
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, N803, N806

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_items(
    q_latent_ptr,
    q_rope_ptr,
    cache_ptr,
    table_ptr,
    count_ptr,
    items_ptr,
    requests_ptr,
    out_ptr,
    partial_ptr,
    row_max_ptr,
    row_sum_ptr,
    q_latent_token_stride,
    q_latent_head_stride,
    q_rope_token_stride,
    q_rope_head_stride,
    page_stride,
    table_stride,
    score_factor,
    H: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Compute one item: the output of its row, or a partial output."""
    TILES: tl.constexpr = (H + M - 1) // M
    item = tl.program_id(0) // TILES
    if item >= tl.load(count_ptr):
        return
    heads = tl.program_id(0) % TILES * M + tl.arange(0, M)
    token = tl.load(items_ptr + item * 4).to(tl.int64)
    start = tl.load(items_ptr + item * 4 + 1)
    end = tl.load(items_ptr + item * 4 + 2)
    partial = tl.load(items_ptr + item * 4 + 3)
    table_ptr += tl.load(requests_ptr + token).to(tl.int64) * table_stride
    c, p, n = tl.arange(0, C), tl.arange(0, P), tl.arange(0, N)
    is_head = (heads < H)[:, None]
    q_latent_ptr += token * q_latent_token_stride
    q_rope_ptr += token * q_rope_token_stride
    q_latent_at = q_latent_ptr + heads[:, None] * q_latent_head_stride + c[None, :]
    q_rope_at = q_rope_ptr + heads[:, None] * q_rope_head_stride + p[None, :]
    q_latent = tl.load(q_latent_at, mask=is_head, other=0.0)
    q_rope = tl.load(q_rope_at, mask=is_head, other=0.0)
    acc = tl.zeros([M, C], tl.float32)
    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    pages = tl.load(table_ptr + (start + n) // S, mask=start + n < end, other=0).to(tl.int64)
    for first in range(start, end, N):
        tokens = first + n
        is_seen = tokens < end
        rows = cache_ptr + pages * page_stride + tokens % S * (C + P)
        latent = tl.load(rows[:, None] + c[None, :], mask=is_seen[:, None], other=0.0)
        k_rope = tl.load(rows[:, None] + C + p[None, :], mask=is_seen[:, None], other=0.0)
        latent = latent.to(q_latent.dtype)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        k_rope = tl.trans(k_rope.to(q_rope.dtype))
        scores = tl.dot(q_rope, k_rope, scores, input_precision="ieee")
        scores = tl.where(is_seen[None, :], scores * score_factor, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        weights = weights.to(latent.dtype)
        acc = tl.dot(weights, latent, acc * rescale[:, None], input_precision="ieee")
        row_max = new_max
        tokens += N
        pages = tl.load(table_ptr + tokens // S, mask=tokens < end, other=0).to(tl.int64)
    if partial < 0:
        out_at = out_ptr + (token * H + heads[:, None]) * C + c[None, :]
        tl.store(out_at, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=is_head)
    else:
        slot_rows = partial.to(tl.int64) * H + heads
        tl.store(partial_ptr + slot_rows[:, None] * C + c[None, :], acc, mask=is_head)
        tl.store(row_max_ptr + slot_rows, row_max, mask=heads < H)
        tl.store(row_sum_ptr + slot_rows, row_sum, mask=heads < H)


@triton.jit
def merge_parts(
    parts_ptr,
    partial_ptr,
    row_max_ptr,
    row_sum_ptr,
    out_ptr,
    H: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Merge the partial outputs of M heads of one row; rows of a single item have none."""
    token = tl.program_id(0).to(tl.int64)
    first = tl.load(parts_ptr + token * 2).to(tl.int64)
    count = tl.load(parts_ptr + token * 2 + 1)
    if count == 0:
        return
    heads, c = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, C)
    is_head = heads < H
    acc = tl.zeros([M, C], tl.float32)
    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    for index in range(0, count):
        slot_rows = (first + index) * H + heads
        other_at = partial_ptr + slot_rows[:, None] * C + c[None, :]
        other = tl.load(other_at, mask=is_head[:, None], other=0.0)
        other_max = tl.load(row_max_ptr + slot_rows, mask=is_head, other=0.0)
        other_sum = tl.load(row_sum_ptr + slot_rows, mask=is_head, other=1.0)
        new_max = tl.maximum(row_max, other_max)
        rescale, other_rescale = tl.exp2(row_max - new_max), tl.exp2(other_max - new_max)
        row_sum = row_sum * rescale + other_sum * other_rescale
        acc = acc * rescale[:, None] + other * other_rescale[:, None]
        row_max = new_max
    at = out_ptr + (token * H + heads[:, None]) * C + c[None, :]
    tl.store(at, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=is_head[:, None])
