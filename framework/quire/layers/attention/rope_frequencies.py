"""Frequencies of rotary embeddings: the angle per position of each pair of elements."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.attention.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    YarnScaling,
)


def frequencies(head_dim: int, rope: RopeParameters, max_positions: int) -> Tensor:
    """Return the angle per position of each pair of elements, `[D / 2]` float32.

    Pairs that are not rotated come last, with an angle of 0.

    Args:
        head_dim: Elements per head, D.
        rope: Wavelengths and their scaling.
        max_positions: Longest context of the engine, which some scalings depend on.
    """
    rotary_dim = head_dim if rope.rotary_dim is None else rope.rotary_dim
    found = torch.zeros(head_dim // 2, dtype=torch.float32)
    rotated = _rotated(rotary_dim, rope, max_positions)
    found[: len(rotated)] = rotated
    return found


def attention_factor(rope: RopeParameters, max_positions: int) -> float:
    """Return the factor on the cosines and sines of rotated pairs."""
    match rope.scaling:
        case YarnScaling() as yarn:
            return yarn.attention_factor
        case LongRopeScaling() as long:
            is_long = max_positions > long.original_max_positions
            return long.long_attention_factor if is_long else long.short_attention_factor
    return 1.0


def _rotated(dim: int, rope: RopeParameters, max_positions: int) -> Tensor:
    """Return the frequencies of the rotated elements, at most `[dim / 2]`."""
    plain = _plain(dim, rope.theta)
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as llama3:
            return _llama3(plain, llama3)
        case YarnScaling() as yarn:
            return _yarn(plain, rope.theta, yarn)
        case LongRopeScaling() as long:
            is_long = max_positions > long.original_max_positions
            return plain / torch.tensor(long.long_factors if is_long else long.short_factors)
        case DynamicScaling() as dynamic:
            return _plain(dim, _scaled_base(dim, rope.theta, dynamic, max_positions))
        case ProportionalScaling() as proportional:
            return plain[: int(proportional.rotated_share * dim // 2)] / proportional.factor
    return plain


def _plain(dim: int, theta: float) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return 1.0 / (theta**exponents)


def _llama3(plain: Tensor, llama3: Llama3Scaling) -> Tensor:
    turns = llama3.original_max_positions * plain / (2 * math.pi)  # within the original context
    low, high = llama3.low_freq_factor, llama3.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1.0 - kept) * plain / llama3.factor


def _yarn(plain: Tensor, theta: float, yarn: YarnScaling) -> Tensor:
    """Interpolate between kept and scaled frequencies, linearly over the elements."""
    dim = 2 * len(plain)
    low = _element_of(yarn.beta_fast, dim, theta, yarn)
    high = _element_of(yarn.beta_slow, dim, theta, yarn)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001  # of an empty range
    scaled = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return scaled * plain / yarn.factor + (1.0 - scaled) * plain


def _element_of(turns: float, dim: int, theta: float, yarn: YarnScaling) -> float:
    """Return the element whose wave makes so many turns within the original context."""
    wavelength = yarn.original_max_positions / (2 * math.pi * turns)
    return dim * math.log(wavelength) / (2 * math.log(theta))


def _scaled_base(dim: int, theta: float, dynamic: DynamicScaling, max_positions: int) -> float:
    original, factor = dynamic.original_max_positions, dynamic.factor
    longest = max(max_positions, original)
    growth = factor * longest / original - (factor - 1)
    return float(theta * growth ** (dim / (dim - 2)))
