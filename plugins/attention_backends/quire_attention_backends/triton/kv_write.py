"""Writes of new K and V to the cache in one launch, with optional norm, rotation and quantization.

A program handles four heads of one token, all of q, of k or of v. It computes in float32 and rounds
once. Its result depends on its own token alone, and the grid on the number of tokens alone. Padding
tokens write to the null block, possibly at the same time; that block is never read.

    qkv  [T, H + 2 * K, D]      q: normed and rotated in place
                                k: normed and rotated, written to the cache
                                v: written to the cache
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803, N806

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams, RotaryStep
from quire_attention_backends.shared.kv_codec import (
    encode_float8,
    encode_int8,
    int8_scale,
    scale_magnitudes,
)
from quire_attention_backends.shared.kv_layout import Pages
from quire_attention_backends.shared.launch_sizes import next_power_of_two

HEADS = 4  # per program; with a head_dim of 128 that is 16 bytes per thread of one warp


def write_kv(
    k: Tensor,  # [T, K, D], heads contiguous
    v: Tensor,  # [T, K, D], heads contiguous
    pages: Pages,
    slot_mapping: Tensor,  # [T] int64
    layer: AttentionLayerParams,
) -> None:
    """Write K and V of a step to their slots."""
    num_tokens, num_kv_heads, head_dim = k.shape
    groups = -(-num_kv_heads // HEADS)
    if not num_tokens:
        return
    _write[num_tokens, 2 * groups](
        k,
        v,
        pages.data,
        pages.data if pages.scales is None else pages.scales,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        pages.data.stride(0),
        0 if pages.scales is None else pages.scales.stride(0),
        layer.k_scale,
        layer.v_scale,
        K=num_kv_heads,
        D=head_dim,
        S=pages.data.shape[3],
        KIND=pages.kind,
        GROUPS=groups,
        HEADS=HEADS,
        BLOCK_D=next_power_of_two(head_dim),
        num_warps=_warps(head_dim),
        enable_fp_fusion=True,
    )


def rotate_and_write(
    qkv: Tensor,  # [T, H + 2 * K, D], contiguous; q in it is overwritten
    rotary: RotaryStep,
    pages: Pages,
    slot_mapping: Tensor,  # [T] int64
    layer: AttentionLayerParams,
    num_heads: int,
) -> Tensor:  # [T, H, D], a view of qkv
    """Norm and rotate q and k, write K and V to their slots, and return q."""
    num_tokens, num_rows, head_dim = qkv.shape
    num_kv_heads = (num_rows - num_heads) // 2
    q = qkv[:, :num_heads]
    if not num_tokens:
        return q
    q_groups, kv_groups = -(-num_heads // HEADS), -(-num_kv_heads // HEADS)
    weight = rotary.norm_weight
    _rotate_and_write[num_tokens, q_groups + 2 * kv_groups](
        qkv,
        rotary.table,
        rotary.positions,
        rotary.table if weight is None else weight,
        pages.data,
        pages.data if pages.scales is None else pages.scales,
        slot_mapping,
        pages.data.stride(0),
        0 if pages.scales is None else pages.scales.stride(0),
        layer.k_scale,
        layer.v_scale,
        rotary.norm_eps,
        H=num_heads,
        K=num_kv_heads,
        D=head_dim,
        S=pages.data.shape[3],
        KIND=pages.kind,
        HAS_NORM=weight is not None,
        Q_GROUPS=q_groups,
        KV_GROUPS=kv_groups,
        HEADS=HEADS,
        BLOCK_HALF=next_power_of_two(head_dim // 2),
        num_warps=_warps(head_dim),
        enable_fp_fusion=True,
    )
    return q


def _warps(head_dim: int) -> int:
    return 1 if head_dim <= 128 else 2


@triton.jit
def _write(
    k_ptr,
    v_ptr,
    data_ptr,
    scales_ptr,
    slots_ptr,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    page_stride,
    scales_page_stride,
    k_scale,
    v_scale,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    side = tl.program_id(1) // GROUPS
    heads = tl.program_id(1) % GROUPS * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK_D)
    is_there = (heads < K)[:, None] & (columns < D)[None, :]
    if side == 0:
        row = k_ptr + token * k_token_stride + heads * k_head_stride
        scale = k_scale
    else:
        row = v_ptr + token * v_token_stride + heads * v_head_stride
        scale = v_scale
    x = tl.load(row[:, None] + columns[None, :], mask=is_there, other=0.0).to(tl.float32)
    slot = tl.load(slots_ptr + token)
    rows = (side * K + heads) * S + slot % S
    if KIND == "int8":
        row_scale = int8_scale(tl.max(scale_magnitudes(x), 1))
        at = scales_ptr + slot // S * scales_page_stride + rows
        tl.store(at, row_scale, mask=heads < K)
    else:
        row_scale = tl.zeros([HEADS], tl.float32) + scale
    out = data_ptr + slot // S * page_stride + rows[:, None] * D + columns[None, :]
    _store(out, x, row_scale, is_there, KIND)


@triton.jit
def _rotate_and_write(
    qkv_ptr,
    table_ptr,
    positions_ptr,
    weight_ptr,
    data_ptr,
    scales_ptr,
    slots_ptr,
    page_stride,
    scales_page_stride,
    k_scale,
    v_scale,
    eps,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    KIND: tl.constexpr,
    HAS_NORM: tl.constexpr,
    Q_GROUPS: tl.constexpr,
    KV_GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    is_q, is_v = group < Q_GROUPS, group >= Q_GROUPS + KV_GROUPS
    # `heads` are indices within q, k or v; `first` is the index of their first head in a token.
    first = tl.where(is_q, 0, tl.where(is_v, H + K, H))
    before = tl.where(is_q, 0, tl.where(is_v, Q_GROUPS + KV_GROUPS, Q_GROUPS))
    heads = (group - before) * HEADS + tl.arange(0, HEADS)
    is_head = heads < tl.where(is_q, H, K)
    columns = tl.arange(0, BLOCK_HALF)
    is_there = is_head[:, None] & (columns < HALF)[None, :]
    at = qkv_ptr + token * ((H + 2 * K) * D) + (first + heads)[:, None] * D + columns[None, :]
    x1 = tl.load(at, mask=is_there, other=0.0).to(tl.float32)
    x2 = tl.load(at + HALF, mask=is_there, other=0.0).to(tl.float32)
    if not is_v:
        if HAS_NORM:
            squares = tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)
            inverse_rms = tl.rsqrt(squares / D + eps)[:, None]
            weight = weight_ptr + (first + heads)[:, None] * D + columns[None, :]
            x1 *= inverse_rms * tl.load(weight, mask=is_there, other=0.0).to(tl.float32)
            x2 *= inverse_rms * tl.load(weight + HALF, mask=is_there, other=0.0).to(tl.float32)
        x1, x2 = _rotated(x1, x2, table_ptr, tl.load(positions_ptr + token), columns, D)
    if is_q:
        tl.store(at, x1.to(qkv_ptr.dtype.element_ty), mask=is_there)
        tl.store(at + HALF, x2.to(qkv_ptr.dtype.element_ty), mask=is_there)
    else:
        slot = tl.load(slots_ptr + token)
        side = tl.where(is_v, 1, 0)
        rows = (side * K + heads) * S + slot % S
        if KIND == "int8":
            largest = tl.maximum(tl.max(scale_magnitudes(x1), 1), tl.max(scale_magnitudes(x2), 1))
            row_scale = int8_scale(largest)
            scale_at = scales_ptr + slot // S * scales_page_stride + rows
            tl.store(scale_at, row_scale, mask=is_head)
        else:
            row_scale = tl.zeros([HEADS], tl.float32) + tl.where(is_v, v_scale, k_scale)
        out = data_ptr + slot // S * page_stride + rows[:, None] * D + columns[None, :]
        _store(out, x1, row_scale, is_there, KIND)
        _store(out + HALF, x2, row_scale, is_there, KIND)


@triton.jit
def _rotated(x1, x2, table_ptr, position, columns, D: tl.constexpr):
    """Rotate the halves of heads by their token's angles; sines of the first half are negated."""
    HALF: tl.constexpr = D // 2
    cos_at = table_ptr + position * (2 * D) + columns
    is_there = columns < HALF
    cos1 = tl.load(cos_at, mask=is_there, other=0.0).to(tl.float32)[None, :]
    cos2 = tl.load(cos_at + HALF, mask=is_there, other=0.0).to(tl.float32)[None, :]
    sin1 = tl.load(cos_at + D, mask=is_there, other=0.0).to(tl.float32)[None, :]
    sin2 = tl.load(cos_at + D + HALF, mask=is_there, other=0.0).to(tl.float32)[None, :]
    return x1 * cos1 + x2 * sin1, x2 * cos2 + x1 * sin2


@triton.jit
def _store(out, x, row_scale, is_there, KIND: tl.constexpr):
    """Store float32 rows in the element type of the cache."""
    if KIND == "float8":
        tl.store(out, encode_float8(tl.div_rn(x, row_scale[:, None])), mask=is_there)
    elif KIND == "int8":
        tl.store(out, encode_int8(x, row_scale[:, None]), mask=is_there)
    else:
        tl.store(out, x.to(out.dtype.element_ty), mask=is_there)
