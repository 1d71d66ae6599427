"""Product of rows sorted by expert with the stacked weights of all experts, in one launch.

A program computes a tile of the rows of one expert. There are as many programs as any distribution
of the rows over the experts needs; each finds its expert and tile from the ends of the experts'
rows, and those that are left over return. So a captured step uses the experts of its own tokens,
and reads only their weights.

    ends [5, 5, 22]    tiles of 16 rows      expert 0: rows 0-4     expert 2: rows 5-20, 21

The products of a tile are added in a fixed order along the inputs. With tiles of one size for any
number of rows, a row's bits do not depend on the other rows.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TileShape:
    """Sizes of a program's tile.

    Attributes:
        max_mean: Largest mean number of rows per expert that the tile is chosen for.
        rows: Rows of the tile.
        outputs: Outputs of the tile.
        columns: Inputs that are multiplied at once.
        warps: Warps of a program.
        stages: Stages of the pipeline that loads inputs and weights.
    """

    max_mean: float
    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int


ANY = float("inf")
TILES = {  # by bytes of an element
    2: (
        TileShape(16, 16, 64, 128, 4, 4),
        TileShape(64, 64, 128, 64, 4, 3),
        TileShape(ANY, 128, 128, 64, 8, 3),
    ),
    4: (TileShape(16, 16, 64, 32, 4, 3), TileShape(ANY, 64, 64, 32, 8, 2)),
}
ONE_SIZE = {2: TileShape(ANY, 64, 64, 64, 4, 3), 4: TileShape(ANY, 64, 64, 32, 8, 2)}


def grouped_product(
    x: Tensor,  # [S, in], sorted by expert
    weight: Tensor,  # [E, out, in]
    bias: Tensor | None,  # [E, out]
    ends: Tensor,  # [E] int64
    *,
    batch_invariant: bool = False,
) -> Tensor:  # [S, out]
    """Multiply the rows of each expert, which end at `ends`, by its weight, and add its bias.

    Rows behind the last expert's are not written.

    Args:
        x: Rows.
        weight: Weights, contiguous.
        bias: Biases, contiguous.
        ends: Number of rows up to and including each expert's.
        batch_invariant: Whether a row's bits must not depend on the other rows.
    """
    num_rows, num_columns = x.shape
    num_experts, num_outputs, _ = weight.shape
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    tile = _tile(num_rows / num_experts, x.itemsize, batch_invariant)
    grid = (most_tiles(num_rows, num_experts, tile.rows), triton.cdiv(num_outputs, tile.outputs))
    _grouped_kernel[grid](
        x.contiguous(),
        weight,
        weight if bias is None else bias,
        ends,
        out,
        num_experts,
        num_columns,
        num_outputs,
        HAS_BIAS=bias is not None,
        EXPERTS=triton.next_power_of_2(num_experts),
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    return out


def most_tiles(num_rows: int, num_experts: int, rows_of_tile: int) -> int:
    """Return the number of tiles that no distribution of the rows over the experts exceeds."""
    num_used = min(num_rows, num_experts)
    return (num_rows + num_used * (rows_of_tile - 1)) // rows_of_tile


def _tile(mean: float, element_bytes: int, batch_invariant: bool) -> TileShape:
    if batch_invariant:
        return ONE_SIZE[element_bytes]
    return next(tile for tile in TILES[element_bytes] if mean <= tile.max_mean)


@triton.jit
def _grouped_kernel(
    x_ptr,  # [S, in]
    weight_ptr,  # [E, out, in]
    bias_ptr,  # [E, out]
    ends_ptr,  # [E]
    out_ptr,  # [S, out]
    num_experts,
    num_columns,
    num_outputs,
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,  # a power of two
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tile = tl.program_id(0)
    expert_range = tl.arange(0, EXPERTS)
    is_expert = expert_range < num_experts
    ends = tl.load(ends_ptr + expert_range, mask=is_expert, other=0)
    is_later = is_expert & (expert_range > 0)
    starts = tl.load(ends_ptr + expert_range - 1, mask=is_later, other=0)
    tiles = ((ends - starts + ROWS - 1) // ROWS).to(tl.int32)
    tile_ends = tl.cumsum(tiles, 0)
    if tile >= tl.sum(tiles, 0):
        return
    expert = tl.sum((tile_ends <= tile).to(tl.int32), 0).to(tl.int64)
    is_mine = expert_range == expert
    first = tl.sum(tl.where(is_mine, starts, 0), 0)
    end = tl.sum(tl.where(is_mine, ends, 0), 0)
    tile -= tl.sum(tl.where(is_mine, tile_ends - tiles, 0), 0)

    row = first + tile * ROWS + tl.arange(0, ROWS)
    is_row = row < end
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    column = tl.arange(0, COLUMNS)
    weight_at = weight_ptr + (expert * num_outputs + output) * num_columns
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, num_columns, COLUMNS):
        here = start + column
        is_column = here < num_columns
        x = tl.load(
            x_ptr + (row * num_columns)[:, None] + here[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_at[None, :] + here[:, None],
            mask=is_output[None, :] & is_column[:, None],
            other=0.0,
        )
        total = tl.dot(x, weight, total, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + expert * num_outputs + output, mask=is_output, other=0.0)
        total += bias.to(tl.float32)[None, :]
    tl.store(
        out_ptr + (row * num_outputs)[:, None] + output[None, :],
        total.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_output[None, :],
    )
