"""Checkpoints of bitsandbytes: 4-bit codes of a table in blocks, and int8 with a scale an output.

A linear layer with 4 bits (`nf4` or `fp4`; Dettmers et al., 2023) has

    weight                                  two elements in a byte, the upper four bits first
    weight.absmax                           scale of each block of consecutive elements
    weight.quant_map                        the table, float32 [16]
    weight.quant_state.bitsandbytes__nf4    JSON with the shape and the size of a block

and with `bnb_4bit_use_double_quant` the scales are codes, too: uint8, with a table and scales of
their own, `weight.nested_quant_map` and `weight.nested_absmax`, and an offset in the JSON. With 8
bits it has `weight`, int8 `[N, K]`, and `SCB`, float32 `[N]`: `w = weight * SCB / 127`. Its
`weight_format` must be 0, rows; others are orders of elements for the tiles of some GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd, isfinite, prod
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.bitsandbytes_config import describe
from quire_quantizations.checkpoints.unpacking import unpacked
from quire_quantizations.checkpoints.weight_parts import (
    GET_ANOTHER,
    WEIGHT,
    check_finite,
    check_part,
    check_positive,
    in_file,
    integers,
    modules_with,
    part,
    with_weights,
)

STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
SCALES, TABLE = ".absmax", ".quant_map"
NESTED_SCALES, NESTED_TABLE = ".nested_absmax", ".nested_quant_map"
ROW_SCALES, LAYOUT = ".SCB", ".weight_format"
HIGHEST = 127.0  # int8 code of a row's largest weight, which is in SCB


@dataclass(frozen=True, slots=True)
class _State:
    """Options of one weight."""

    outputs: int
    inputs: int
    block_size: int
    nested_block_size: int
    nested_offset: float


class BitsAndBytes(PreparedQuantization):
    """Reader of checkpoints of bitsandbytes."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BitsAndBytes:
        """Return the reader; the options of each weight are beside it."""
        describe(config)  # checks it
        return cls()

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with a weight in place of the parts of each quantized layer."""
        states = {
            name.removesuffix(state): name
            for state in STATES
            for name in tensors
            if name.endswith(state)
        }
        ends = (SCALES, TABLE, NESTED_SCALES, NESTED_TABLE)
        _check_states(tensors, ends, states)
        in_bytes = {*modules_with(tensors, ROW_SCALES)} | {
            module
            for module in modules_with(tensors, WEIGHT)
            if tensors[module + WEIGHT].stored[0].dtype == "I8" and module + WEIGHT not in states
        }
        parts = {name + end for name in states for end in ends} | set(states.values())
        parts |= {module + end for module in in_bytes for end in (ROW_SCALES, LAYOUT)}
        weights = {name: _in_blocks(name, state, tensors, read) for name, state in states.items()}
        weights |= {module + WEIGHT: _in_rows(module, tensors, read) for module in in_bytes}
        return with_weights(tensors, parts, weights, "bitsandbytes")


def _check_states(tensors: Tensors, ends: Collection[str], states: Collection[str]) -> None:
    """Check that weights of 4 bits have their options.

    Raises:
        CheckpointCorruptError: One has parts, and no options.
    """
    for name, tensor in tensors.items():
        base = next((name.removesuffix(end) for end in ends if name.endswith(end)), None)
        if base is not None and base not in states:
            part(tensors, base + STATES[0], tensor)


def _in_blocks(name: str, state_name: str, tensors: Tensors, read: Read) -> CheckpointTensor:
    """Return a weight of 4 bits."""
    state_tensor = tensors[state_name]
    codes = part(tensors, name, state_tensor)
    state = _state(read(state_tensor.stored[0]), state_tensor)
    num_elements = state.outputs * state.inputs
    if codes.stored[0].num_bytes != -(-num_elements // 2):
        raise CheckpointCorruptError(
            f"tensor {in_file(codes)} has {codes.stored[0].num_bytes} bytes, "
            f"but 4 bits of a weight {[state.outputs, state.inputs]} are {-(-num_elements // 2)}"
        )
    scales, table = (part(tensors, name + end, codes) for end in (SCALES, TABLE))
    num_blocks = -(-num_elements // state.block_size)
    is_nested = name + NESTED_SCALES in tensors or scales.stored[0].dtype == "U8"
    check_part(scales, ("U8",) if is_nested else ("F32",), (num_blocks,), "bitsandbytes")
    check_part(table, ("F32",), (16,), "bitsandbytes")
    stored = [codes, table, scales]
    if is_nested:
        nested = part(tensors, name + NESTED_SCALES, codes)
        check_part(nested, ("F32",), (-(-num_blocks // state.nested_block_size),), "bitsandbytes")
        nested_table = part(tensors, name + NESTED_TABLE, codes)
        check_part(nested_table, ("F32",), (256,), "bitsandbytes")
        stored += [nested, nested_table]
    return CheckpointTensor(
        name,
        (state.outputs, state.inputs),
        tuple(tensor.stored[0] for tensor in stored),
        partial(_decoded, names=tuple(map(in_file, stored)), state=state),
        is_quantized=True,
    )


def _state(content: Tensor, tensor: CheckpointTensor) -> _State:
    """Return the options that a tensor of bytes has as JSON.

    Raises:
        CheckpointCorruptError: They are not there.
    """
    try:
        values = json.loads(bytes(content.tolist()))
        outputs, inputs = map(int, values["shape"])
        found = _State(
            outputs,
            inputs,
            int(values["blocksize"]),
            int(values.get("nested_blocksize", 1)),
            float(values.get("nested_offset", 0.0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointCorruptError(
            f"tensor {in_file(tensor)} must be the JSON of a weight's shape and blocksize: "
            f"{error!r}; {GET_ANOTHER}"
        ) from error
    if not isfinite(found.nested_offset):
        raise CheckpointCorruptError(
            f"tensor {in_file(tensor)} has a nested_offset of {found.nested_offset}; {GET_ANOTHER}"
        )
    if min(found.outputs, found.inputs, found.block_size, found.nested_block_size) < 1:
        raise CheckpointCorruptError(
            f"tensor {in_file(tensor)} has sizes below 1: {values}; {GET_ANOTHER}"
        )
    return found


def _decoded(
    packed: Tensor,
    table: Tensor,
    scales: Tensor,
    *nested: Tensor,
    names: tuple[str, ...],  # of these tensors
    state: _State,
) -> QuantizedWeight:
    shape = (state.outputs, state.inputs)
    fields = unpacked(packed.contiguous().view(torch.uint8).view(1, -1), 4).view(-1, 2)
    codes = fields.flip(1).flatten()[: prod(shape)].view(shape)
    table = check_finite(table, names[1])
    if nested:
        factors = check_finite(nested[0], names[3])
        values = check_finite(nested[1], names[4])
        block = torch.arange(len(scales)) // state.nested_block_size
        scales = values[scales.int()] * factors[block] + state.nested_offset
    else:
        scales = check_positive(scales, names[2])
    size = gcd(state.inputs, state.block_size)  # inputs that are in one block in every row
    starts = torch.arange(prod(shape) // size) * size
    return QuantizedWeight(
        codes=codes,
        scales=scales[starts // state.block_size].view(state.outputs, -1),
        table=table,
        group_size=size,
    )


def _in_rows(module: str, tensors: Tensors, read: Read) -> CheckpointTensor:
    """Return a weight of 8 bits."""
    either = tensors.get(module + WEIGHT) or tensors[module + ROW_SCALES]
    codes, scales = (part(tensors, module + end, either) for end in (WEIGHT, ROW_SCALES))
    check_part(codes, ("I8",), (None, None), "bitsandbytes with 8 bits")
    check_part(scales, ("F32",), (codes.shape[0],), "bitsandbytes with 8 bits")
    layout = tensors.get(module + LAYOUT)
    if layout is not None and bool((order := read(layout.stored[0])).any()):
        raise CheckpointCorruptError(
            f"tensor {in_file(layout)} is {order.tolist()}, so the elements of {codes.name} are in "
            "the order of a GPU's tiles (col32, col_turing or col_ampere); quire reads rows (0): "
            "quantize the model again, or use another checkpoint"
        )
    return CheckpointTensor(
        module + WEIGHT,
        codes.shape,
        (*codes.stored, *scales.stored),
        partial(_decoded_rows, name=in_file(scales)),
        is_quantized=True,
    )


def _decoded_rows(codes: Tensor, scales: Tensor, *, name: str) -> QuantizedWeight:
    return QuantizedWeight(
        codes=codes.view(torch.uint8) ^ 128,
        scales=(check_positive(scales, name) / HIGHEST).unsqueeze(1),
        table=integers(256, 128),
        group_size=codes.shape[1],
    )
