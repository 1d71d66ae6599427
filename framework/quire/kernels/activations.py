"""Activations in one pass: of each element, and of a gate times the up projection.

A program computes a block of elements. Every element is computed by the same operations, in
float32, and rounded once.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements per program: 8 per thread, one load of 16 bytes in half precision
NUM_WARPS = 4
NO_COEFFICIENTS = (0.0,) * 4

GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi)
GELU_CUBE = tl.constexpr(0.044715)
QUICK_GELU_SLOPE = tl.constexpr(1.702)
SQRT_HALF = tl.constexpr(0.7071067811865476)


def activate(x: Tensor, name: str, coefficients: Sequence[float] = NO_COEFFICIENTS) -> Tensor:
    """Return `activation(x)`, in the memory of `x` if it is contiguous.

    Args:
        x: Elements.
        name: Function: `silu`, `gelu`, `gelu_tanh`, `relu`, `relu2`, `quick_gelu` or `xielu`.
        coefficients: Coefficients of `xielu`: a, b, beta and eps.
    """
    out = x.contiguous()
    size = out.numel()
    _activate_kernel[(-(-size // BLOCK),)](
        out,
        size,
        *coefficients,
        NAME=name,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return out


def activate_gate(gate_up: Tensor, name: str) -> Tensor:
    """Return `activation(gate) * up`: `[T, 2 * n] -> [T, n]`, the gate first.

    Args:
        gate_up: The gate and the up projection.
        name: As in `activate`, but for `xielu`.
    """
    rows = gate_up.contiguous()
    num_rows, width = rows.shape
    size = width // 2
    out = torch.empty(num_rows, size, dtype=rows.dtype, device=rows.device)
    pieces = -(-size // BLOCK)
    _gate_kernel[(num_rows * pieces,)](
        rows,
        out,
        size,
        pieces,
        NAME=name,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _gated(x, slope):
    """Return x * sigmoid(slope), without overflow."""
    small = tl.exp(-tl.abs(slope))
    return x * (tl.where(slope >= 0, 1.0, small) / (1.0 + small))


@triton.jit
def _exp_minus_one(x):
    """Return e^x - 1 for x <= 0; near zero by the first terms of its series."""
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return tl.where(x > -0.2, series, tl.exp(x) - 1.0)


@triton.jit
def _activated(x, a, b, beta, eps, NAME: tl.constexpr):
    """Return an activation of float32 elements; the coefficients are those of xIELU."""
    if NAME == "silu":
        result = _gated(x, x)
    elif NAME == "gelu_tanh":  # (1 + tanh(u)) / 2 is the sigmoid of 2 * u
        result = _gated(x, (x + x * x * x * GELU_CUBE) * GELU_SLOPE)
    elif NAME == "quick_gelu":
        result = _gated(x, x * QUICK_GELU_SLOPE)
    elif NAME == "gelu":
        result = 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    elif NAME == "relu":
        result = tl.where(x < 0, 0.0, x)
    elif NAME == "relu2":
        result = tl.where(x < 0, 0.0, x * x)
    else:
        tl.static_assert(NAME == "xielu")
        bounded = tl.where(x < eps, x, eps)
        curved = tl.where(x > 0, a * x * x, b * (_exp_minus_one(bounded) - x))
        result = curved + beta * x
    return result


@triton.jit
def _activate_kernel(
    x_ptr,  # [size], in place
    size,
    a,
    b,
    beta,
    eps,
    NAME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < size
    x = tl.load(x_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
    out = _activated(x, a, b, beta, eps, NAME)
    tl.store(x_ptr + at, out.to(x_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _gate_kernel(
    gate_up_ptr,  # [T, 2 * n]
    out_ptr,  # [T, n]
    size,
    pieces,  # programs per row
    NAME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    column = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    gate_at = gate_up_ptr + row * (2 * size) + column
    gate = tl.load(gate_at, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=is_inside, other=0.0).to(tl.float32)
    out = _activated(gate, 0.0, 0.0, 0.0, 0.0, NAME) * up
    tl.store(out_ptr + row * size + column, out.to(out_ptr.dtype.element_ty), mask=is_inside)
