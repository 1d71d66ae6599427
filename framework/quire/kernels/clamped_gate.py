"""Gated activation with clamped inputs in one pass, computed in float32 and rounded once."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements per program


def clamped_gate(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """Return `(up + 1) * gate * sigmoid(alpha * gate)`: `[T, 2 * n] -> [T, n]`, the gate first.

    Args:
        gate_up: Gates and up projections.
        alpha: Slope of the sigmoid.
        limit: Largest gate, and largest magnitude of the up projection.
    """
    rows = gate_up.contiguous()
    num_rows, width = rows.shape
    size = width // 2
    out = torch.empty(num_rows, size, dtype=rows.dtype, device=rows.device)
    pieces = -(-size // BLOCK)
    if num_rows:
        _clamped_kernel[(num_rows * pieces,)](
            rows, out, size, pieces, alpha, limit, BLOCK=BLOCK, enable_fp_fusion=True
        )
    return out


@triton.jit
def _clamped_kernel(
    gate_up_ptr,  # [T, 2 * n]
    out_ptr,  # [T, n]
    size,
    pieces,  # programs per row
    alpha,
    limit,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    column = (tl.program_id(0) % pieces) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    gate_at = gate_up_ptr + row * (2 * size) + column
    gate = tl.load(gate_at, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=is_inside, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)  # NaN stays NaN
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    out = (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    tl.store(out_ptr + row * size + column, out.to(out_ptr.dtype.element_ty), mask=is_inside)
