"""Gated activations: the gate's activation times the up projection, in one pass.

A program computes a block of one row. Every element is computed by the same operations, in float32,
and rounded once.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements per program: 8 per thread, one load of 16 bytes in half precision
NUM_WARPS = 4

GELU_SLOPE = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi)
GELU_CUBE = tl.constexpr(0.044715)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`: `[T, 2 * n] -> [T, n]`, the gate first."""
    return _launch(gate_up, is_gelu=False)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up` with the tanh approximation: `[T, 2 * n] -> [T, n]`."""
    return _launch(gate_up, is_gelu=True)


def _launch(gate_up: Tensor, is_gelu: bool) -> Tensor:
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
        IS_GELU=is_gelu,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _gate_kernel(
    gate_up_ptr,  # [T, 2 * n]
    out_ptr,  # [T, n]
    size,
    pieces,  # programs per row
    IS_GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    column = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    gate_at = gate_up_ptr + row * (2 * size) + column
    gate = tl.load(gate_at, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=is_inside, other=0.0).to(tl.float32)
    slope = gate
    if IS_GELU:  # (1 + tanh(u)) / 2 is the sigmoid of 2 * u
        slope = GELU_SLOPE * (gate + GELU_CUBE * gate * gate * gate)
    small = tl.exp(-tl.abs(slope))  # never overflows
    sigmoid = tl.where(slope >= 0, 1.0, small) / (1.0 + small)
    out = (gate * sigmoid * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * size + column, out, mask=is_inside)
