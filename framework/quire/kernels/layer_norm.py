"""Residual addition and layer norm in one pass, as `rms_norm` does for RMS norms.

One program computes one row and reads nothing else, so a row's bits do not depend on its batch.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_WARP = 512  # 16 per thread: two loads of 16 bytes in half precision
MAX_WARPS = 32  # with fewer, rows of 16,384 elements do not fit into registers


def add_layer_norm(
    x: Tensor,  # [..., n], the last dimension contiguous
    residual: Tensor | None,  # the same shape
    weight: Tensor | None,  # [n]
    bias: Tensor | None,  # [n]
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return the norm of `x + residual` times `weight` plus `bias`, and that sum.

    The sum is rounded to the dtype. The norm is computed in float32 from the rounded sum, and
    rounded once. Without a residual the sum is `x` itself.
    """
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    others = rows if residual is None else residual.reshape(rows.shape)
    num_rows, size = rows.shape
    block = 1 << (size - 1).bit_length()  # the next power of two
    _add_layer_norm_kernel[(num_rows,)](
        rows,
        others,
        rows if weight is None else weight,
        rows if bias is None else bias,
        normed,
        total,
        rows.stride(0),
        others.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        BLOCK=block,
        num_warps=min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP)),
        enable_fp_fusion=True,
    )
    return normed, total


@triton.jit
def _add_layer_norm_kernel(
    x_ptr,  # [T, n]
    residual_ptr,  # [T, n]
    weight_ptr,  # [n]
    bias_ptr,  # [n]
    normed_ptr,  # [T, n], contiguous
    total_ptr,  # [T, n], contiguous
    x_stride,
    residual_stride,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < size
    x = tl.load(x_ptr + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(
            residual_ptr + row * residual_stride + column, mask=is_inside, other=0.0
        ).to(tl.float32)
        total = (x + residual).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * size + column, total, mask=is_inside)
        x = total.to(tl.float32)
    x = tl.where(is_inside, x - tl.sum(x, 0) / size, 0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    if HAS_WEIGHT:
        normed *= tl.load(weight_ptr + column, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        normed += tl.load(bias_ptr + column, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(
        normed_ptr + row * size + column, normed.to(normed_ptr.dtype.element_ty), mask=is_inside
    )
