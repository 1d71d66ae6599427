"""Codes of a quantized checkpoint in the groups of a packed format, and choice of that format."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.formats import E2M1, E4M3, NF4, NUMBERS_4, NUMBERS_8, Format
from quire_quantizations.linear_library import CodesStruct
from quire_quantizations.number_tables import (
    E4M3_NAN,
    e2m1_table,
    float8_table,
    has_magnitude,
    nf4_table,
    zero_of,
)
from quire_quantizations.weight_rows import concatenated, fit_together, offsets_of

NUMBERS = ((16, 8, NUMBERS_4), (256, 128, NUMBERS_8))  # codes, that of zero, formats


class GroupedCodes:
    """Codes with scales and offsets for groups of a fixed number of consecutive inputs.

    Args:
        codes: `[out, in]` uint8.
        scales: `[out, G]` float32.
        offsets: The same, or None.
        order: Index in x of each input, `[in]` int32, if the inputs of a group are not consecutive
            there.
    """

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        offsets: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.shape = codes.shape
        self.order = order
        self._held = (codes.contiguous(), scales.contiguous(), _contiguous(offsets))
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in self._held]
        self._struct = CodesStruct(*addresses, scales.shape[1])
        self.address = ctypes.addressof(self._struct)


def joined(weights: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """Return the rows of several weights one after another; None: they have no common form.

    Numbers of different sizes or groups become numbers of 8 bits in groups that fit all.
    """
    if all(fit_together(weights[0], one) for one in weights[1:]):
        return concatenated(weights)
    bytes_of = [_in_bytes(one, _common_group(weights)) for one in weights]
    same = [one for one in bytes_of if one is not None]
    return concatenated(same) if len(same) == len(weights) else None


def in_a_format(weight: QuantizedWeight) -> tuple[GroupedCodes, Format] | None:
    """Return the codes in the groups of the first format that keeps them; None: there is none.

    Numbers of 4 bits in groups that only formats of 8 bits have are kept in those.
    """
    found = _in_one_of(*_with_formats(weight))
    if found is not None or (wide := _in_bytes(weight, weight.group_size)) is None:
        return found
    return _in_one_of(*_with_formats(wide))


def _in_one_of(
    weight: QuantizedWeight, formats: Sequence[Format]
) -> tuple[GroupedCodes, Format] | None:
    weight, order = _in_order_of_groups(weight)
    for one in formats:
        groups = _whole_groups(weight, one.group_size)
        if groups is not None and (one.has_offsets or weight.offsets is None):
            offsets = None if weight.offsets is None else weight.offsets[:, groups]
            return GroupedCodes(weight.codes, weight.scales[:, groups], offsets, order), one
    return None


def _common_group(weights: Sequence[QuantizedWeight]) -> int:
    """Return the largest number of inputs that no weight has different groups in."""
    sizes = [min(one.group_size, one.shape[1]) for one in weights]
    return math.gcd(*(size for size in sizes if size < weights[0].shape[1])) or weights[0].shape[1]


def _in_bytes(weight: QuantizedWeight, group_size: int) -> QuantizedWeight | None:
    """Return a weight of integers with codes of 8 bits and smaller groups; None: it is another."""
    num_codes, middle, _ = NUMBERS[-1]
    zero = zero_of(weight.table)
    if zero is None or weight.groups is not None or len(weight.table) > num_codes:
        return None
    weight = _shifted(weight, middle - zero, num_codes)
    groups = torch.arange(0, weight.shape[1], group_size) // weight.group_size
    return replace(
        weight,
        scales=weight.scales[:, groups],
        offsets=None if weight.offsets is None else weight.offsets[:, groups],
        table=torch.arange(num_codes) - float(middle),
        group_size=group_size,
    )


def _with_formats(weight: QuantizedWeight) -> tuple[QuantizedWeight, tuple[Format, ...]]:
    """Return a weight whose codes are those of some formats, and these formats."""
    table, zero = weight.table, zero_of(weight.table)
    if zero is not None:
        return _centred(weight, zero)
    if torch.equal(table, nf4_table()):
        return weight, NF4
    if torch.equal(table, e2m1_table()):
        return weight, E2M1
    is_e4m3 = torch.equal(table.nan_to_num(), float8_table().nan_to_num())
    if is_e4m3 and not has_magnitude(weight.codes, E4M3_NAN):
        return weight, E4M3
    return weight, ()


def _centred(weight: QuantizedWeight, zero: float) -> tuple[QuantizedWeight, tuple[Format, ...]]:
    """Return a weight of integers as codes whose zero is in the middle.

    Args:
        weight: Weight whose table has consecutive numbers.
        zero: Code of 0 in its table.
    """
    for num_codes, middle, formats in NUMBERS:
        if len(weight.table) <= num_codes:
            return _shifted(weight, middle - zero, num_codes), formats
    return weight, ()


def _shifted(weight: QuantizedWeight, shift: float, num_codes: int) -> QuantizedWeight:
    """Return a weight of integers whose code of 0 is another: by other codes, or by offsets."""
    if shift == int(shift) and 0 <= shift <= num_codes - len(weight.table):
        codes = weight.codes + int(shift) if shift else weight.codes
        return replace(weight, codes=codes)
    return replace(weight, offsets=offsets_of(weight) + shift * weight.scales)


def _in_order_of_groups(weight: QuantizedWeight) -> tuple[QuantizedWeight, Tensor | None]:
    """Return a weight with the inputs of each group one after another, and their order."""
    if weight.groups is None or bool((weight.groups.diff() >= 0).all()):
        return weight, None
    order = weight.groups.argsort(stable=True)
    return replace(weight, codes=weight.codes[:, order], groups=weight.groups[order]), order.int()


def _whole_groups(weight: QuantizedWeight, size: int) -> Tensor | None:
    """Return the weight's group of each group of `size` inputs; None: some inputs have others."""
    groups = weight.group_indices()
    missing = -len(groups) % size
    padded = torch.cat((groups, groups[-1:].expand(missing))).view(-1, size)
    return padded[:, 0] if bool((padded == padded[:, :1]).all()) else None


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
