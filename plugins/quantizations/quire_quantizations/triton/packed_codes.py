"""Quantized weight as Triton kernels read it: tiles of codes, with scales for each group of inputs.

Codes of at most 16 values are two in a byte, others one. A tile has 64 outputs and the inputs of
`unit` bytes of each; it is contiguous, and so are the tiles along the inputs:

    codes    [panels, tiles, 64, unit]   byte k of a tile: input k, and input `unit + k` above it
    scales   [panels, groups, 64]
    offsets  [panels, groups, 64]        zero points in uint8, or offsets in float32

    weight = (code - zero) * scale       integers: differences are exact in 16 bits
    weight = value(code) * scale + offset

Outputs are padded to whole panels and inputs to whole tiles. A tile lies in one group, or each half
of it does, so a product is scaled group by group. If inputs of a group are not consecutive, or if
groups are not a multiple of 16 inputs, inputs are sorted by group, and each group is padded; x is
then gathered by `order`.

Scales have the narrowest dtype of 16 or 32 bits that has all of them exactly. Nothing else is
rounded: `value(code)` is exact in float16 and bfloat16 for integers, e2m1 and e4m3. Values of other
tables, such as NF4, are rounded to the compute dtype by the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.number_tables import e2m1_table, float8_table, zero_of

PANEL = 64  # outputs
SMALLEST_UNIT = 16  # inputs of the smallest product of 16-bit numbers
RUNS = (128, 64, 32, 16)  # sizes of the parts that uneven groups are padded to
HALF_BYTE_VALUES = 16
LARGEST_ZERO = {1: 255, 2: 127}  # that the kernel subtracts exactly, by codes in a byte

INTEGER, E2M1, E4M3, FLOAT8, TABLE = "integer", "e2m1", "e4m3", "float8", "table"


@dataclass(frozen=True, slots=True, eq=False)
class PackedCodes:
    """A weight `[N, K]`, or those of several experts: tensors then have a dimension more in front.

    Attributes:
        num_outputs: N.
        num_inputs: Number of inputs in the order of the tiles, without padding of the last tile.
        decoding: How a code becomes a number: "integer", "e2m1", "e4m3" (by arithmetic), "float8"
            (e4m3 by an instruction) or "table".
        codes_per_byte: 1 or 2.
        zero: Zero point of all integers, unless `offsets` has those of groups.
        group_size: Inputs that share a scale; a multiple of the unit.
        codes: `[panels, tiles, 64, unit]` uint8.
        scales: `[panels, groups, 64]` float16, bfloat16 or float32.
        offsets: `[panels, groups, 64]`: zero points of integers in uint8, or offsets in float32.
        table: Value of each code, `[values]` float32.
        order: Input of x for each input of the tiles, `[num_inputs]` int32; -1: zero.
    """

    num_outputs: int
    num_inputs: int
    decoding: str
    codes_per_byte: int
    zero: int
    group_size: int
    codes: Tensor
    scales: Tensor
    offsets: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        named = {name: getattr(self, name) for name in TENSORS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


TENSORS = ("codes", "scales", "offsets", "table", "order")


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """Inputs sorted by group, in runs of one size that each lie in one group.

    Attributes:
        group_size: Number of inputs of a run.
        groups: Group of each run, `[runs]` int64.
        order: Index of each input, `[runs * group_size]` int64; -1: padding. None: inputs stay.
    """

    group_size: int
    groups: Tensor
    order: Tensor | None


def packed(weight: QuantizedWeight, *, has_float8: bool, largest_unit: int) -> PackedCodes:
    """Pack a weight on the device of its codes.

    Args:
        weight: Weight; it is not changed.
        has_float8: Whether the device has an instruction that converts e4m3.
        largest_unit: Largest number of bytes of an output in a tile.
    """
    ordered = group_order(weight)
    decoding, zero = _decoding(weight.table, has_float8=has_float8)
    per_byte = 2 if len(weight.table) <= HALF_BYTE_VALUES else 1
    unit = _unit(ordered.group_size, per_byte, largest_unit)
    codes, num_inputs = weight.codes, weight.shape[1]
    if ordered.order is not None:
        num_inputs = len(ordered.order)
        codes = _gathered(codes, ordered.order)
    tiles = _tiles(codes, unit, per_byte)
    padded_inputs = tiles.shape[1] * unit * per_byte
    group_size = padded_inputs if len(ordered.groups) == 1 else ordered.group_size
    num_groups = -(-padded_inputs // group_size)
    offsets = weight.offsets
    if offsets is not None:
        zeros = _zero_points(weight) if decoding == INTEGER else None
        is_exact = zeros is not None and int(zeros.max()) <= LARGEST_ZERO[per_byte]
        offsets = zeros.to(torch.uint8) if zeros is not None and is_exact else offsets
        offsets = _panels(offsets[:, ordered.groups], num_groups)
    return PackedCodes(
        num_outputs=weight.shape[0],
        num_inputs=num_inputs,
        decoding=decoding,
        codes_per_byte=per_byte,
        zero=zero,
        group_size=group_size,
        codes=tiles,
        scales=_panels(_narrowed(weight.scales)[:, ordered.groups], num_groups),
        offsets=offsets,
        table=weight.table if decoding == TABLE else None,
        order=None if ordered.order is None else ordered.order.int(),
    )


def group_order(weight: QuantizedWeight) -> GroupOrder:
    """Return the order of a weight's inputs by group."""
    num_inputs, num_groups = weight.shape[1], weight.scales.shape[1]
    all_groups = torch.arange(num_groups, device=weight.codes.device)
    if weight.groups is None:
        if num_groups == 1:
            return GroupOrder(max(num_inputs, 1), all_groups, None)
        if weight.group_size % SMALLEST_UNIT == 0:
            return GroupOrder(weight.group_size, all_groups, None)
    groups = weight.group_indices().to(weight.codes.device)
    counts = torch.bincount(groups, minlength=num_groups)
    run = _run_size(counts[counts > 0].tolist())
    runs = -(-counts // run)  # [G]
    order = groups.new_full((int(runs.sum()) * run,), -1)
    by_group = torch.argsort(groups, stable=True)
    rank = (
        torch.arange(num_inputs, device=groups.device)
        - (counts.cumsum(0) - counts)[groups[by_group]]
    )
    starts = (runs.cumsum(0) - runs) * run
    order[starts[groups[by_group]] + rank] = by_group
    return GroupOrder(run, torch.repeat_interleave(all_groups, runs), order)


def stacked(weights: Sequence[PackedCodes]) -> PackedCodes | None:
    """Return the weights of several experts as one, `[E, ...]`; None: they have several formats."""
    first = weights[0]
    if len({_format(weight) for weight in weights}) > 1:
        return None
    parts = [weight.tensors() for weight in weights]
    return _with(first, {name: torch.stack([part[name] for part in parts]) for name in parts[0]})


def of_expert(stack: PackedCodes, expert: int) -> PackedCodes:
    """Return one expert's weight, whose tensors are views of the stack's."""
    return _with(stack, {name: tensor[expert] for name, tensor in stack.tensors().items()})


def _with(weight: PackedCodes, tensors: Mapping[str, Tensor]) -> PackedCodes:
    return replace(
        weight,
        codes=tensors["codes"],
        scales=tensors["scales"],
        offsets=tensors.get("offsets"),
        table=tensors.get("table"),
        order=tensors.get("order"),
    )


def _format(weight: PackedCodes) -> tuple[object, ...]:
    plain = (field.name for field in fields(weight) if field.name not in TENSORS)
    shapes = ((name, t.shape, t.dtype) for name, t in weight.tensors().items())
    return (*(getattr(weight, name) for name in plain), *shapes)


def _run_size(counts: Sequence[int]) -> int:
    """Return the size of runs that groups of these sizes are divided into."""
    if len(set(counts)) == 1 and counts[0] % SMALLEST_UNIT == 0:
        return counts[0]
    # A run costs the bytes of its codes, about half a byte each, and of its scale.
    cost = {run: sum(-(-count // run) for count in counts) * (run // 2 + 2) for run in RUNS}
    return min(cost, key=lambda run: cost[run])


def _unit(group_size: int, per_byte: int, largest: int) -> int:
    """Return the bytes of an output in a tile; a tile or each of its halves is in one group."""
    unit = SMALLEST_UNIT
    if group_size % SMALLEST_UNIT:  # one group
        while unit < largest and 2 * unit * per_byte <= group_size:
            unit *= 2
        return unit
    while unit < largest and group_size % (2 * unit * per_byte) == 0:
        unit *= 2
    return unit


def _decoding(table: Tensor, *, has_float8: bool) -> tuple[str, int]:
    """Return how codes become numbers, and the zero point of integers."""
    values = table.cpu()
    zero = zero_of(values)
    if zero is not None and 0 <= zero <= LARGEST_ZERO[2] + 1 and zero == int(zero):
        return INTEGER, int(zero)
    if torch.equal(values, e2m1_table()):
        return E2M1, 0
    if torch.equal(values.nan_to_num(), float8_table().nan_to_num()):
        return (FLOAT8 if has_float8 else E4M3), 0
    return TABLE, 0


def _gathered(codes: Tensor, order: Tensor) -> Tensor:
    return codes[:, order.clamp(min=0)].masked_fill_(order < 0, 0)


def _tiles(codes: Tensor, unit: int, per_byte: int) -> Tensor:
    """Return codes `[N, K]` as `[panels, tiles, 64, unit]`."""
    outputs, inputs = codes.shape
    padded = functional.pad(codes, (0, -inputs % (unit * per_byte), 0, -outputs % PANEL))
    parts = padded.view(padded.shape[0] // PANEL, PANEL, -1, per_byte, unit)
    joined = parts[..., 0, :] if per_byte == 1 else parts[..., 0, :] | parts[..., 1, :] << 4
    return joined.transpose(1, 2).contiguous()


def _panels(values: Tensor, num_groups: int) -> Tensor:
    """Return values `[N, G]` as `[panels, num_groups, 64]`."""
    outputs, groups = values.shape
    padded = functional.pad(values, (0, num_groups - groups, 0, -outputs % PANEL))
    return padded.view(-1, PANEL, num_groups).transpose(1, 2).contiguous()


def _zero_points(weight: QuantizedWeight) -> Tensor | None:
    """Return the zero points `[N, G]` of integers; None: offsets are not multiples of scales."""
    scales, offsets = weight.scales, weight.offsets
    if offsets is None:
        return None
    zeros = torch.where(scales == 0, 0.0, -offsets / scales).round()
    if not torch.equal(-zeros * scales, offsets):
        return None
    zeros = zeros - weight.table[0]
    return zeros if int(zeros.min()) >= 0 else None


def _narrowed(scales: Tensor) -> Tensor:
    """Return scales in the narrowest dtype that has all of them exactly."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scales.to(dtype).float(), scales):
            return scales.to(dtype)
    return scales
