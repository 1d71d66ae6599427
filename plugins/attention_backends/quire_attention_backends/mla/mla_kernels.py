"""All heads of a token meet a tile of latents that is read once, as keys and as values.

A program takes one item of a split plan, a run of the tokens that a row of the step sees, and M of
the row's heads. A tile is N rows of the cache. Its first C columns are multiplied by the queries,
and by the weights that come of them, without a second load; several programs of one row run side by
side, so those after the first find the tile in the L2 cache.

Scores stay as the product gave them; `unit`, the layer's scale times log2(e), turns them into
logarithms to base 2 where they enter the exponential.

    row of the cache   | latent: C numbers, key and value | rotated key: P numbers |
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
    peaks_ptr,
    masses_ptr,
    q_latent_token_stride,
    q_latent_head_stride,
    q_rope_token_stride,
    q_rope_head_stride,
    page_stride,
    table_stride,
    unit,
    H: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Compute one item: the answer of its row, or a part of it."""
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
    peak = tl.full([M], float("-inf"), tl.float32)
    mass = tl.zeros([M], tl.float32)
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
        scores = tl.where(is_seen[None, :], scores * unit, float("-inf"))
        larger = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        fade = tl.exp2(peak - larger)
        mass = mass * fade + tl.sum(weights, 1)
        weights = weights.to(latent.dtype)
        acc = tl.dot(weights, latent, acc * fade[:, None], input_precision="ieee")
        peak = larger
        tokens += N
        pages = tl.load(table_ptr + tokens // S, mask=tokens < end, other=0).to(tl.int64)
    if partial < 0:
        out_at = out_ptr + (token * H + heads[:, None]) * C + c[None, :]
        tl.store(out_at, (acc / mass[:, None]).to(out_ptr.dtype.element_ty), mask=is_head)
    else:
        place = partial.to(tl.int64) * H + heads
        tl.store(partial_ptr + place[:, None] * C + c[None, :], acc, mask=is_head)
        tl.store(peaks_ptr + place, peak, mask=heads < H)
        tl.store(masses_ptr + place, mass, mask=heads < H)


@triton.jit
def merge_parts(
    parts_ptr,
    partial_ptr,
    peaks_ptr,
    masses_ptr,
    out_ptr,
    H: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Merge the partial answers of M heads of one row; a row without any was answered."""
    token = tl.program_id(0).to(tl.int64)
    first = tl.load(parts_ptr + token * 2).to(tl.int64)
    count = tl.load(parts_ptr + token * 2 + 1)
    if count == 0:
        return
    heads, c = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, C)
    is_head = heads < H
    acc = tl.zeros([M, C], tl.float32)
    peak = tl.full([M], float("-inf"), tl.float32)
    mass = tl.zeros([M], tl.float32)
    for index in range(0, count):
        place = (first + index) * H + heads
        other_at = partial_ptr + place[:, None] * C + c[None, :]
        other = tl.load(other_at, mask=is_head[:, None], other=0.0)
        other_peak = tl.load(peaks_ptr + place, mask=is_head, other=0.0)
        other_mass = tl.load(masses_ptr + place, mask=is_head, other=1.0)
        larger = tl.maximum(peak, other_peak)
        fade, other_fade = tl.exp2(peak - larger), tl.exp2(other_peak - larger)
        mass = mass * fade + other_mass * other_fade
        acc = acc * fade[:, None] + other * other_fade[:, None]
        peak = larger
    at = out_ptr + (token * H + heads[:, None]) * C + c[None, :]
    tl.store(at, (acc / mass[:, None]).to(out_ptr.dtype.element_ty), mask=is_head[:, None])
