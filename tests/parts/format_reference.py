"""Reference of the weight formats in torch, bit-exact with the C++ that packs them.

A quantized weight is a code and the scale of its group of inputs of one output. Codes and scales
are computed here and in `linear_packing.h` by the same rounded operations in the same order, so
both give the same bits.
"""

from dataclasses import replace

import torch
from native_libraries import BF16_SETS_HERE
from torch import Tensor
from torch.nn import functional

from quire_quantizations.formats import (
    BFLOAT16,
    BFLOAT16_DOT,
    FLOAT16,
    FLOAT32,
    INT4,
    INT4_DOT,
    INT8,
    INT8_DOT,
    Format,
)

FORMATS = {  # by name, those that this processor multiplies
    "float32": FLOAT32, "float16": FLOAT16, "bf16": BFLOAT16, "int8": INT8, "int8_dot": INT8_DOT,
    "int4": INT4, "int4_dot": INT4_DOT,
}  # fmt: skip
if BF16_SETS_HERE:
    FORMATS["bf16_dot"] = BFLOAT16_DOT

INT8_GROUP, INT4_GROUP = 128, 32  # inputs; also in linear_formats.h
INT4_DIVISORS = tuple(-6.0 - 0.5 * i for i in range(8))  # of the extreme value, in trial order


def nearest_bf16(values: Tensor) -> Tensor:
    """Round to bfloat16, and return float32."""
    return values.bfloat16().float()


def quantize_int8(
    weight: Tensor,  # [out, in] float32
) -> tuple[Tensor, Tensor]:  # codes [out, G, 128], scales [out, G, 1]
    """Quantize so that the extreme value of each group has the code 127 or -127."""
    groups = _in_groups(weight, INT8_GROUP)
    scales = nearest_bf16(groups.abs().amax(-1, keepdim=True) / 127)
    return _codes(groups, scales, -127, 127), scales


def quantize_int4(
    weight: Tensor,  # [out, in] float32
) -> tuple[Tensor, Tensor]:  # codes [out, G, 32], scales [out, G, 1]
    """Try several scales for the extreme value, and keep the one with the least squared error.

    The scale is then fitted to the codes by least squares.
    """
    groups = _in_groups(weight, INT4_GROUP)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    codes, scales, gains = _try_scale(groups, nearest_bf16(extreme / INT4_DIVISORS[0]))
    for divisor in INT4_DIVISORS[1:]:
        other = _try_scale(groups, nearest_bf16(extreme / divisor))
        is_better = other[2] > gains
        codes = torch.where(is_better, other[0], codes)
        scales = torch.where(is_better, other[1], scales)
        gains = torch.where(is_better, other[2], gains)
    return codes, torch.where(extreme.isnan(), extreme, scales)


def dequantized(codes: Tensor, scales: Tensor, in_features: int) -> Tensor:
    """Return the weight `[out, in]` of codes and scales."""
    return (codes * scales).flatten(1)[:, :in_features]


def _rounded_int8(weight: Tensor) -> Tensor:
    return dequantized(*quantize_int8(weight), weight.shape[1])


def _rounded_int4(weight: Tensor) -> Tensor:
    return dequantized(*quantize_int4(weight), weight.shape[1])


def _in_groups(weight: Tensor, size: int) -> Tensor:
    missing = -weight.shape[1] % size
    num_groups = (weight.shape[1] + missing) // size
    return functional.pad(weight, (0, missing)).view(len(weight), num_groups, size)


def _codes(groups: Tensor, scales: Tensor, lowest: int, highest: int) -> Tensor:
    factors = 1 / scales
    factors = torch.where(factors.isinf(), 0.0, factors)  # scales of zero, or close to it
    return (groups * factors).clamp(lowest, highest).round()


def _try_scale(groups: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, the best scale for them, and the reduction of the squared error."""
    codes = _codes(groups, scales, -8, 7)
    squares = _sum_in_order(codes * codes)
    products = _sum_in_order(groups * codes)
    best = products / squares
    gains = torch.where(squares == 0, 0.0, products * best)
    return codes, torch.where(squares == 0, scales, nearest_bf16(best)), gains


def _sum_in_order(values: Tensor) -> Tensor:
    total = torch.zeros_like(values[..., :1])
    for i in range(values.shape[-1]):
        total = total + values[..., i : i + 1]
    return total


def round_weight(weight_format: Format, weight: Tensor) -> Tensor:  # [out, in] float32, both
    """Round a dense weight to the values that the format stores."""
    if weight_format == FLOAT16:
        return weight.half().float()
    rounded = {BFLOAT16: nearest_bf16, INT8: _rounded_int8, INT4: _rounded_int4}
    stored = replace(weight_format, inputs="float32")
    return weight if stored == FLOAT32 else rounded[stored](weight)


def round_input(weight_format: Format, x: Tensor) -> Tensor:  # [T, in] float32, both
    """Round inputs to the values that the format multiplies."""
    if weight_format.inputs == "float32":
        return x
    if weight_format.inputs == "bfloat16":
        return nearest_bf16(x)
    return dequantized(*quantize_input(weight_format, x), x.shape[1])


def quantize_input(
    weight_format: Format,
    x: Tensor,  # [T, in] float32
) -> tuple[Tensor, Tensor]:  # codes [T, G, group], scales [T, G, 1]
    """Quantize inputs in the groups of the weight, so that the largest has the code 127 or -127."""
    own = INT8_GROUP if weight_format.index == INT8.index else INT4_GROUP
    groups = _in_groups(x, weight_format.group_size or own)
    scales = groups.abs().amax(-1, keepdim=True) / 127
    return _codes(groups, scales, -127, 127), scales


def integer_product(
    weight_format: Format,
    x: Tensor,  # [T, in] float32
    weight: Tensor,  # [out, in] float32
) -> Tensor:  # [T, out] float32
    """Simulate a product of codes: exact sums of groups, each then scaled and added in float32.

    Within one rounding of a float64: the kernel scales and adds with one fused instruction.
    """
    quantize = quantize_int8 if weight_format.index == INT8.index else quantize_int4
    weight_codes, weight_scales = quantize(weight)
    codes, scales = quantize_input(weight_format, x)
    total = torch.zeros(len(x), len(weight))
    for group in range(codes.shape[1]):
        product = (codes[:, group].double() @ weight_codes[:, group].T.double()).float()
        scaled = (product * weight_scales[:, group, 0]).double()
        total = (scaled * scales[:, group].double() + total.double()).float()
    return total
