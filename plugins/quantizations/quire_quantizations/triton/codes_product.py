"""Product of rows with a weight of codes: tiles are decoded in registers, sums are in float32.

A program multiplies some rows by some outputs. It walks along the tiles of codes, decodes each in
registers, multiplies it by the rows on the matrix units, and scales the sum of each group once. So
scales are applied in float32, and weights are never rounded. With few rows there are few programs,
and the inputs are divided among several; a second launch adds their parts in order.

    out[row, output] = sum over groups of scale * (sum of x * (code - zero))

Rows of several experts are sorted by expert, and each program finds its expert on the device, so a
captured step reads the weights of its own tokens' experts.

The sizes of a program's part depend on the number of rows. In batch-invariant mode they do not, and
inputs are not divided: a row then has the same bits in any batch.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_quantizations.triton.packed_codes import PANEL, PackedCodes

PANEL_OUTPUTS = tl.constexpr(PANEL)


@dataclass(frozen=True, slots=True)
class TileShape:
    """Sizes of a program's part.

    Attributes:
        max_rows: Largest number of rows, of an expert on average, that it is chosen for.
        rows: Rows of the part.
        outputs: Outputs of the part.
        warps: Warps of a program.
        stages: Stages of the pipeline that loads rows and codes.
    """

    max_rows: float
    rows: int
    outputs: int
    warps: int
    stages: int


ANY = float("inf")
SHAPES = {  # by bytes of an element of x
    2: (
        TileShape(16, 16, 64, 4, 4),
        TileShape(64, 64, 64, 4, 3),
        TileShape(ANY, 128, 128, 8, 2),  # with a third stage registers are spilled
    ),
    4: (TileShape(16, 16, 64, 4, 3), TileShape(ANY, 32, 64, 8, 2)),
}
ONE_SHAPE = {2: TileShape(ANY, 64, 64, 4, 3), 4: TileShape(ANY, 32, 64, 8, 2)}
LARGEST_UNIT = {2: 64, 4: 32}  # bytes of an output in a tile, by bytes of an element of x

MOST_DIVIDED_ROWS = 64  # with more there are enough programs
WANTED_PROGRAMS = 512  # about four for each multiprocessor
LEAST_TILES = 4  # of a program
SUMMED_OUTPUTS = 512  # by a program that adds parts
GATHERED_INPUTS = 1024


def product(
    x: Tensor,  # [T, in]
    weight: PackedCodes,
    bias: Tensor | None,  # [out]
    out: Tensor,  # [T, out], rows may have any stride
    *,
    batch_invariant: bool = False,
) -> None:
    """Write `x @ weight.T + bias` to `out`.

    Args:
        x: Rows.
        weight: Weight, on the same device.
        bias: Bias, contiguous.
        out: Products.
        batch_invariant: Whether a row's bits must not depend on the other rows.
    """
    num_rows = len(x)
    if not num_rows or not weight.num_outputs:
        return
    x = x.contiguous() if weight.order is None else _gathered(x, weight.order, None)
    shape = _shape(num_rows, x.itemsize, batch_invariant)
    tiles = weight.codes.shape[1]
    output_parts = triton.cdiv(weight.num_outputs, shape.outputs)
    row_parts = triton.cdiv(num_rows, shape.rows)
    num_parts = 1
    if num_rows <= MOST_DIVIDED_ROWS and not batch_invariant:
        wanted = triton.cdiv(WANTED_PROGRAMS, output_parts * row_parts)
        num_parts = max(1, min(wanted, tiles // LEAST_TILES))
    tiles_of_part = triton.cdiv(tiles, num_parts)
    num_parts = triton.cdiv(tiles, tiles_of_part) if tiles else 1
    target, row_stride = out, out.stride(0)
    if num_parts > 1:
        shape_of_parts = (num_parts, num_rows, weight.num_outputs)
        target = torch.empty(shape_of_parts, dtype=torch.float32, device=x.device)
        row_stride = weight.num_outputs
    has_bias = bias is not None and num_parts == 1
    _product_kernel[row_parts, output_parts, num_parts](
        x,
        *_pointers(weight),
        bias if bias is not None and has_bias else x,
        target,
        num_rows,
        weight.num_inputs,
        weight.num_outputs,
        tiles,
        tiles_of_part,
        weight.scales.shape[1],
        row_stride,
        HAS_BIAS=has_bias,
        **_constants(weight, shape),
    )
    if num_parts > 1:
        _sum_kernel[num_rows, triton.cdiv(weight.num_outputs, SUMMED_OUTPUTS)](
            target,
            target if bias is None else bias,
            out,
            num_rows,
            weight.num_outputs,
            num_parts,
            out.stride(0),
            HAS_BIAS=bias is not None,
            OUTPUTS=SUMMED_OUTPUTS,
            num_warps=4,
        )


def grouped_product(
    x: Tensor,  # [S, in], sorted by expert
    weights: PackedCodes,  # of E experts
    bias: Tensor | None,  # [E, out]
    ends: Tensor,  # [E] int64
    *,
    batch_invariant: bool = False,
) -> Tensor:  # [S, out]
    """Multiply the rows of each expert, which end at `ends`, by its weight, and add its bias.

    Rows behind the last expert's are not written.

    Args:
        x: Rows.
        weights: Weights of all experts.
        bias: Biases, contiguous.
        ends: Number of rows up to and including each expert's.
        batch_invariant: Whether a row's bits must not depend on the other rows.
    """
    num_rows, num_experts = len(x), len(ends)
    out = torch.empty(num_rows, weights.num_outputs, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    x = x.contiguous() if weights.order is None else _gathered(x, weights.order, ends)
    shape = _shape(num_rows / num_experts, x.itemsize, batch_invariant)
    _, panels, tiles, _, _ = weights.codes.shape
    used = min(num_rows, num_experts)
    row_parts = (num_rows + used * (shape.rows - 1)) // shape.rows  # of any distribution
    _grouped_kernel[row_parts, triton.cdiv(weights.num_outputs, shape.outputs)](
        x,
        *_pointers(weights),
        x if bias is None else bias,
        out,
        ends,
        num_experts,
        weights.num_inputs,
        weights.num_outputs,
        panels,
        tiles,
        weights.scales.shape[2],
        HAS_BIAS=bias is not None,
        EXPERTS=triton.next_power_of_2(num_experts),
        **_constants(weights, shape),
    )
    return out


def _shape(num_rows: float, element_bytes: int, batch_invariant: bool) -> TileShape:
    if batch_invariant:
        return ONE_SHAPE[element_bytes]
    return next(shape for shape in SHAPES[element_bytes] if num_rows <= shape.max_rows)


def _pointers(weight: PackedCodes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scales = weight.scales  # in place of what there is not
    offsets = scales if weight.offsets is None else weight.offsets
    return weight.codes, scales, offsets, scales if weight.table is None else weight.table


def _constants(weight: PackedCodes, shape: TileShape) -> dict[str, object]:
    unit, offsets = weight.codes.shape[-1], weight.offsets
    inputs = weight.codes.shape[-3] * unit * weight.codes_per_byte
    has_zeros = offsets is not None and offsets.dtype == torch.uint8
    return {
        "DECODING": weight.decoding,
        "ZERO": weight.zero,
        "HAS_ZEROS": has_zeros,
        "HAS_OFFSETS": offsets is not None and not has_zeros,
        "ONE_GROUP": weight.scales.shape[-2] == 1,
        "UNITS_OF_GROUP": max(1, weight.group_size // unit),
        "PER_BYTE": weight.codes_per_byte,
        "UNIT": unit,
        "IS_PADDED": weight.num_inputs < inputs,
        "ROWS": shape.rows,
        "OUTPUTS": shape.outputs,
        "num_warps": shape.warps,
        "num_stages": shape.stages,
        "enable_fp_fusion": True,
    }


def _gathered(x: Tensor, order: Tensor, ends: Tensor | None) -> Tensor:
    """Return the inputs of each row in the order of the tiles."""
    num_rows, num_inputs = len(x), order.shape[-1]
    out = torch.empty(num_rows, num_inputs, dtype=x.dtype, device=x.device)
    num_experts = 1 if ends is None else len(ends)
    _gather_kernel[num_rows, triton.cdiv(num_inputs, GATHERED_INPUTS)](
        x,
        order,
        order if ends is None else ends,
        out,
        x.stride(0),
        num_inputs,
        num_experts,
        HAS_EXPERTS=ends is not None,
        EXPERTS=triton.next_power_of_2(num_experts),
        INPUTS=GATHERED_INPUTS,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _product_kernel(
    x_ptr,  # [T, in]
    codes_ptr,  # [panels, tiles, 64, UNIT]
    scales_ptr,  # [panels, groups, 64]
    offsets_ptr,  # [panels, groups, 64]
    table_ptr,  # [values]
    bias_ptr,  # [out]
    out_ptr,  # [parts, T, out]
    num_rows,
    num_inputs,
    num_outputs,
    num_tiles,
    tiles_of_part,
    num_groups,
    row_stride,
    HAS_BIAS: tl.constexpr,
    DECODING: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    ONE_GROUP: tl.constexpr,
    UNITS_OF_GROUP: tl.constexpr,
    PER_BYTE: tl.constexpr,
    UNIT: tl.constexpr,
    IS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    row = row.to(tl.int64)
    part = tl.program_id(2)
    total = _multiplied(
        x_ptr, codes_ptr, scales_ptr, offsets_ptr, table_ptr,
        row, is_row, num_inputs, num_outputs, num_tiles, num_groups,
        part * tiles_of_part, min((part + 1) * tiles_of_part, num_tiles),
        DECODING, ZERO, HAS_ZEROS, HAS_OFFSETS, ONE_GROUP, UNITS_OF_GROUP, PER_BYTE, UNIT,
        IS_PADDED, ROWS, OUTPUTS,
    )  # fmt: skip
    out_ptr += part.to(tl.int64) * num_rows * row_stride
    _store(total, bias_ptr, out_ptr, row, is_row, num_outputs, row_stride, HAS_BIAS, OUTPUTS)


@triton.jit(do_not_specialize=["num_experts"])
def _grouped_kernel(
    x_ptr,  # [S, in]
    codes_ptr,  # [E, panels, tiles, 64, UNIT]
    scales_ptr,  # [E, panels, groups, 64]
    offsets_ptr,  # [E, panels, groups, 64]
    table_ptr,  # [E, values], the same for all
    bias_ptr,  # [E, out]
    out_ptr,  # [S, out]
    ends_ptr,  # [E]
    num_experts,
    num_inputs,
    num_outputs,
    num_panels,
    num_tiles,
    num_groups,
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,  # a power of two
    DECODING: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    ONE_GROUP: tl.constexpr,
    UNITS_OF_GROUP: tl.constexpr,
    PER_BYTE: tl.constexpr,
    UNIT: tl.constexpr,
    IS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    at = tl.program_id(0)
    expert_range = tl.arange(0, EXPERTS)
    ends = tl.load(ends_ptr + expert_range, mask=expert_range < num_experts, other=0)
    is_later = (expert_range > 0) & (expert_range < num_experts)
    starts = tl.load(ends_ptr + expert_range - 1, mask=is_later, other=0)
    parts = ((ends - starts + ROWS - 1) // ROWS).to(tl.int32)  # none behind the last expert
    part_ends = tl.cumsum(parts, 0)
    if at >= tl.sum(parts, 0):
        return
    expert = tl.sum((part_ends <= at).to(tl.int32), 0)
    is_mine = expert_range == expert
    first = tl.sum(tl.where(is_mine, starts, 0), 0)
    end = tl.sum(tl.where(is_mine, ends, 0), 0)
    at -= tl.sum(tl.where(is_mine, part_ends - parts, 0), 0)

    row = first + at * ROWS + tl.arange(0, ROWS)
    is_row = row < end
    panel = expert.to(tl.int64) * num_panels
    scales_at = panel * num_groups * PANEL_OUTPUTS
    total = _multiplied(
        x_ptr, codes_ptr + panel * num_tiles * (PANEL_OUTPUTS * UNIT),
        scales_ptr + scales_at, offsets_ptr + scales_at, table_ptr,
        row, is_row, num_inputs, num_outputs, num_tiles, num_groups, 0, num_tiles,
        DECODING, ZERO, HAS_ZEROS, HAS_OFFSETS, ONE_GROUP, UNITS_OF_GROUP, PER_BYTE, UNIT,
        IS_PADDED, ROWS, OUTPUTS,
    )  # fmt: skip
    bias_ptr += expert.to(tl.int64) * num_outputs
    _store(total, bias_ptr, out_ptr, row, is_row, num_outputs, num_outputs, HAS_BIAS, OUTPUTS)


@triton.jit
def _multiplied(
    x_ptr,
    codes_ptr,
    scales_ptr,
    offsets_ptr,
    table_ptr,
    row,
    is_row,
    num_inputs,
    num_outputs,
    num_tiles,
    num_groups,
    first_tile,
    end_tile,
    DECODING: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    ONE_GROUP: tl.constexpr,
    UNITS_OF_GROUP: tl.constexpr,
    PER_BYTE: tl.constexpr,
    UNIT: tl.constexpr,
    IS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Return the products of a program's rows and outputs, `[OUTPUTS, ROWS]`, without the bias."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # The last panel is read twice if there is no other; its second products are not stored.
    panel = tl.minimum(output // PANEL_OUTPUTS, (num_outputs - 1) // PANEL_OUTPUTS)
    lane = output % PANEL_OUTPUTS
    input_of_unit = tl.arange(0, UNIT)
    panel = panel.to(tl.int64)
    codes_at = codes_ptr + (panel * num_tiles * PANEL_OUTPUTS + lane)[:, None] * UNIT
    codes_at += input_of_unit[None, :]
    scales_at = panel * num_groups * PANEL_OUTPUTS + lane
    x_at = x_ptr + (row * num_inputs)[None, :] + input_of_unit[:, None]  # [UNIT, ROWS]
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    if HAS_ZEROS and ONE_GROUP:
        zero_of_all = tl.load(offsets_ptr + scales_at)[:, None]
    for tile in range(first_tile, end_tile):
        codes = tl.load(codes_at + tile * (PANEL_OUTPUTS * UNIT))
        product_of_group = tl.zeros((OUTPUTS, ROWS), tl.float32)
        for half in tl.static_range(PER_BYTE):
            unit = tile * PER_BYTE + half
            group_at = scales_at + unit // UNITS_OF_GROUP * PANEL_OUTPUTS
            is_read = is_row[None, :]
            if IS_PADDED:
                is_read = is_read & (unit * UNIT + input_of_unit < num_inputs)[:, None]
            x = tl.load(x_at + unit * UNIT, mask=is_read, other=0.0)
            if HAS_ZEROS and ONE_GROUP:
                zero = zero_of_all
            elif HAS_ZEROS:
                zero = tl.load(offsets_ptr + group_at)[:, None]
            else:
                zero = ZERO
            field = codes if PER_BYTE == 1 else (codes >> (4 * half)) & 15
            values = _decoded(field, zero, table_ptr, DECODING, HAS_ZEROS, PER_BYTE, dtype)
            if HAS_OFFSETS:
                sums += tl.sum(x.to(tl.float32), 0)
            if ONE_GROUP:
                total = tl.dot(values, x, total, input_precision="ieee")
            else:
                product_of_group = tl.dot(values, x, product_of_group, input_precision="ieee")
                if half == PER_BYTE - 1 or UNITS_OF_GROUP % PER_BYTE != 0:
                    scale = tl.load(scales_ptr + group_at).to(tl.float32)
                    total += product_of_group * scale[:, None]
                    product_of_group = tl.zeros((OUTPUTS, ROWS), tl.float32)
                    if HAS_OFFSETS:
                        offset = tl.load(offsets_ptr + group_at)
                        total += offset[:, None] * sums[None, :]
                        sums = tl.zeros((ROWS,), tl.float32)
    if ONE_GROUP:
        total *= tl.load(scales_ptr + scales_at).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            total += tl.load(offsets_ptr + scales_at)[:, None] * sums[None, :]
    return total


@triton.jit
def _decoded(
    code,  # [OUTPUTS, UNIT] uint8
    zero,
    table_ptr,
    DECODING: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    PER_BYTE: tl.constexpr,
    dtype: tl.constexpr,
):
    """Return the numbers of codes. Small integers are made by setting bits of a power of two."""
    if DECODING == "integer" and dtype == tl.float16:
        power = (code.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)  # 1024 + code
        number = power - (1024 + _zero_in(zero, HAS_ZEROS, tl.float16))
    elif DECODING == "integer" and dtype == tl.bfloat16 and PER_BYTE == 2:
        power = (code.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)  # 128 + code
        number = power - (128 + _zero_in(zero, HAS_ZEROS, tl.bfloat16))
    elif DECODING == "integer":
        number = code.to(tl.float32) - _zero_in(zero, HAS_ZEROS, tl.float32)
    elif DECODING == "float8":
        number = code.to(tl.float8e4nv, bitcast=True)
    elif DECODING == "e4m3":  # the exponent's bias is 7, and 15 in float16
        bits = ((code & 0x80).to(tl.uint16) << 8) | ((code & 0x7F).to(tl.uint16) << 7)
        finite = bits.to(tl.float16, bitcast=True) * 256.0
        number = tl.where((code & 0x7F) == 0x7F, float("nan"), finite)
    elif DECODING == "e2m1":  # the exponent's bias is 1
        bits = ((code & 8).to(tl.uint16) << 12) | ((code & 7).to(tl.uint16) << 9)
        number = bits.to(tl.float16, bitcast=True) * 16384.0
    else:
        number = tl.load(table_ptr + code.to(tl.int32))
    return number.to(dtype)


@triton.jit
def _zero_in(zero, HAS_ZEROS: tl.constexpr, dtype: tl.constexpr):
    return zero.to(dtype) if HAS_ZEROS else zero


@triton.jit
def _store(
    total,
    bias_ptr,
    out_ptr,
    row,
    is_row,
    num_outputs,
    row_stride,
    HAS_BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    if HAS_BIAS:
        total += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out_ptr + (row * row_stride)[None, :] + output[:, None],
        total.to(out_ptr.dtype.element_ty),
        mask=is_row[None, :] & is_output[:, None],
    )


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def _sum_kernel(
    parts_ptr,  # [parts, T, out] float32
    bias_ptr,  # [out]
    out_ptr,  # [T, out]
    num_rows,
    num_outputs,
    num_parts,
    row_stride,
    HAS_BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    total = tl.zeros((OUTPUTS,), tl.float32)
    for part in range(num_parts):
        at = (part * num_rows + row) * num_outputs + output
        total += tl.load(parts_ptr + at, mask=is_output, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + row * row_stride + output, total.to(out_ptr.dtype.element_ty), mask=is_output
    )


@triton.jit(do_not_specialize=["num_experts"])
def _gather_kernel(
    x_ptr,  # [T, in]
    order_ptr,  # [E, n] int32
    ends_ptr,  # [E]
    out_ptr,  # [T, n]
    row_stride,
    num_inputs,
    num_experts,
    HAS_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    here = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    is_input = here < num_inputs
    if HAS_EXPERTS:
        expert_range = tl.arange(0, EXPERTS)
        is_expert = expert_range < num_experts
        ends = tl.load(ends_ptr + expert_range, mask=is_expert, other=0)
        expert = tl.sum((is_expert & (ends <= row)).to(tl.int32), 0)
        # Rows behind the last expert's are gathered like its own, and never multiplied.
        order_ptr += tl.minimum(expert, num_experts - 1).to(tl.int64) * num_inputs
    source = tl.load(order_ptr + here, mask=is_input, other=-1)
    x = tl.load(x_ptr + row * row_stride + source, mask=source >= 0, other=0.0)
    tl.store(out_ptr + row * num_inputs + here, x, mask=is_input)
