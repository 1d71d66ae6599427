"""Rows of several quantized weights as those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quire.interfaces.quantized_weight import QuantizedWeight


def fit_together(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    """Return whether two weights have the same table and the same groups of inputs."""
    tables = one.table.nan_to_num(), other.table.nan_to_num()  # e4m3 has codes that are NaN
    return torch.equal(*tables) and torch.equal(one.group_indices(), other.group_indices())


def concatenated(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Return the rows of weights that fit together, one after another."""
    if len(weights) == 1:
        return weights[0]
    has_offsets = any(one.offsets is not None for one in weights)
    return replace(
        weights[0],
        codes=torch.cat([one.codes for one in weights]),
        scales=torch.cat([one.scales for one in weights]),
        offsets=torch.cat([offsets_of(one) for one in weights]) if has_offsets else None,
        has_int8_inputs=all(one.has_int8_inputs for one in weights),
    )


def offsets_of(weight: QuantizedWeight) -> Tensor:
    """Return the offsets of a weight, `[N, G]`, which may all be zero."""
    return torch.zeros_like(weight.scales) if weight.offsets is None else weight.offsets
