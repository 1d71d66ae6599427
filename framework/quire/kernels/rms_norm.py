"""Residual addition and RMS norm in one pass: each element is read once and written once.

One program computes one row and reads nothing else, so a row's bits do not depend on its batch.
Writing the sum to the residual in place would move no fewer bytes, so both inputs are unchanged.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_WARP = 512  # 16 per thread: two loads of 16 bytes in half precision
MAX_WARPS = 16


def add_rms_norm(
    x: Tensor,  # [..., n], the last dimension contiguous
    residual: Tensor | None,  # the same shape
    weight: Tensor | None,  # [n]
    eps: float,
    rounds_before_weight: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the norm of `x + residual` times `weight`, and that sum rounded to the dtype.

    The norm is computed in float32 from the rounded sum, and rounded once; with
    `rounds_before_weight` it is rounded to the dtype before the product with the weight as well.
    Without a residual the sum is `x` itself.
    """
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(normed)
    others = rows if residual is None else residual
    if others.dim() != 2:
        others = others.reshape(rows.shape)
    num_rows, size = rows.shape
    block = 1 << (size - 1).bit_length()  # the next power of two
    _add_rms_norm_kernel[(num_rows,)](
        rows,
        others,
        rows if weight is None else weight,
        normed,
        total,
        rows.stride(0),
        others.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        ROUNDS_BEFORE_WEIGHT=rounds_before_weight,
        BLOCK=block,
        num_warps=min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP)),
        enable_fp_fusion=True,
    )
    return normed, total


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,  # [T, n]
    residual_ptr,  # [T, n]
    weight_ptr,  # [n]
    normed_ptr,  # [T, n], contiguous
    total_ptr,  # [T, n], contiguous
    x_stride,
    residual_stride,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROUNDS_BEFORE_WEIGHT: tl.constexpr,
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
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    if ROUNDS_BEFORE_WEIGHT:
        normed = normed.to(normed_ptr.dtype.element_ty).to(tl.float32)
    if HAS_WEIGHT:
        normed *= tl.load(weight_ptr + column, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(
        normed_ptr + row * size + column, normed.to(normed_ptr.dtype.element_ty), mask=is_inside
    )
