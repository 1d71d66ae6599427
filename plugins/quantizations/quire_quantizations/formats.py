"""What a packed weight may keep of each number, and the same by torch operators, number for number.

A quantized weight is a code and the scale of its group: `GROUP` inputs of one output. Codes and
scales are chosen here and in `linear_packing.h` by the same rounded operations in the same order,
so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

INT8_GROUP, INT4_GROUP = 128, 32  # inputs; linear_formats.h has them too
INT4_DIVISORS = tuple(-6.0 - 0.5 * i for i in range(8))  # of the furthest number, in order


@dataclass(frozen=True, slots=True)
class Format:
    """One way to keep a weight.

    Attributes:
        index: Its number in linear.cpp.
        keeps: From a dense float32 weight `[out, in]` to the numbers that are kept of it.
        only_bf16: Nothing wider is ever needed of a weight.
        takes: From what is multiplied, in float32, to the numbers that are taken for it.
    """

    index: int
    keeps: Callable[[Tensor], Tensor]
    only_bf16: bool = False
    takes: Callable[[Tensor], Tensor] = lambda x: x


def nearest_bf16(numbers: Tensor) -> Tensor:
    """Round to bfloat16, and return float32."""
    return numbers.bfloat16().float()


def quantize_int8(
    weight: Tensor,  # [out, in] float32
) -> tuple[Tensor, Tensor]:  # codes [out, G, 128], scales [out, G, 1]
    """Let the furthest number of a group have the code 127 or -127."""
    groups = _in_groups(weight, INT8_GROUP)
    scales = nearest_bf16(groups.abs().amax(-1, keepdim=True) / 127)
    return _codes(groups, scales, -127, 127), scales


def quantize_int4(
    weight: Tensor,  # [out, in] float32
) -> tuple[Tensor, Tensor]:  # codes [out, G, 32], scales [out, G, 1]
    """Try several codes for the furthest number, and keep those that miss the weight least.

    The scale is then fitted to the codes by least squares.
    """
    groups = _in_groups(weight, INT4_GROUP)
    furthest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    codes, scales, gains = _try_scale(groups, nearest_bf16(furthest / INT4_DIVISORS[0]))
    for divisor in INT4_DIVISORS[1:]:
        other = _try_scale(groups, nearest_bf16(furthest / divisor))
        is_better = other[2] > gains
        codes = torch.where(is_better, other[0], codes)
        scales = torch.where(is_better, other[1], scales)
        gains = torch.where(is_better, other[2], gains)
    return codes, torch.where(furthest.isnan(), furthest, scales)


def dequantized(codes: Tensor, scales: Tensor, in_features: int) -> Tensor:
    """Return the weight `[out, in]` that codes and scales stand for."""
    return (codes * scales).flatten(1)[:, :in_features]


def _kept_in_int8(weight: Tensor) -> Tensor:
    return dequantized(*quantize_int8(weight), weight.shape[1])


def _kept_in_int4(weight: Tensor) -> Tensor:
    return dequantized(*quantize_int4(weight), weight.shape[1])


def _in_groups(weight: Tensor, size: int) -> Tensor:
    missing = -weight.shape[1] % size
    num_groups = (weight.shape[1] + missing) // size
    return functional.pad(weight, (0, missing)).view(len(weight), num_groups, size)


def _codes(groups: Tensor, scales: Tensor, lowest: int, highest: int) -> Tensor:
    factors = 1 / scales
    factors = torch.where(factors.isinf(), 0.0, factors)  # of zeros, and of what is next to them
    return (groups * factors).clamp(lowest, highest).round()


def _try_scale(groups: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, the best scale for them, and how much that takes off the squared error."""
    codes = _codes(groups, scales, -8, 7)
    squares = _sum_in_order(codes * codes)
    products = _sum_in_order(groups * codes)
    best = products / squares
    gains = torch.where(squares == 0, 0.0, products * best)
    return codes, torch.where(squares == 0, scales, nearest_bf16(best)), gains


def _sum_in_order(numbers: Tensor) -> Tensor:
    total = torch.zeros_like(numbers[..., :1])
    for i in range(numbers.shape[-1]):
        total = total + numbers[..., i : i + 1]
    return total


FLOAT32 = Format(0, lambda weight: weight)
BFLOAT16 = Format(1, nearest_bf16, only_bf16=True)
INT8 = Format(2, _kept_in_int8)
INT4 = Format(3, _kept_in_int4)
BFLOAT16_DOT = Format(4, nearest_bf16, only_bf16=True, takes=nearest_bf16)
