"""Mxfp4 experts, as gpt-oss stores them: 4-bit floats, with one power of two for each 32.

A matrix `[rows, K]` of each expert is stored as `NAME_blocks`, uint8 `[E, rows, K / 32, 16]`, two
elements in a byte, the lower four bits first, and `NAME_scales`, uint8 `[E, rows, K / 32]`, which
are exponents with a bias of 127 (OCP Microscaling Formats, version 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedStack, QuantizedWeight
from quire_quantizations.checkpoints.unpacking import unpacked
from quire_quantizations.checkpoints.weight_parts import (
    GET_ANOTHER,
    check_part,
    in_file,
    part,
    with_weights,
)
from quire_quantizations.number_tables import E8M0_NAN, e2m1_table, powers_of_two

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK, BLOCK_BYTES = 32, 16


class MXFP4(PreparedQuantization):
    """Reader of checkpoints with mxfp4 experts."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MXFP4:
        """Return the reader; all options are for other engines."""
        del config
        return cls()

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with matrices in place of blocks and scales."""
        del read
        bases = [name.removesuffix(BLOCKS) for name in tensors if name.endswith(BLOCKS)]
        for name, tensor in tensors.items():
            if name.endswith(SCALES) and tensor.stored[0].dtype == "U8" and len(tensor.shape) == 3:
                part(tensors, name.removesuffix(SCALES) + BLOCKS, tensor)
        parts = {base + suffix for base in bases for suffix in (BLOCKS, SCALES)}
        weights = {base: _weights(base, tensors) for base in bases}
        return with_weights(tensors, parts, weights, "mxfp4")


def checked_scales(
    exponents: Tensor,  # uint8
    name: str,
) -> Tensor:
    """Return scales of the type e8m0 in float32.

    Raises:
        CheckpointCorruptError: One is NaN.
    """
    if (exponents == E8M0_NAN).any():
        raise CheckpointCorruptError(
            f"tensor {name} has scales that are NaN ({E8M0_NAN}); {GET_ANOTHER}"
        )
    return powers_of_two(exponents)


def _weights(base: str, tensors: Tensors) -> CheckpointTensor:
    blocks = tensors[base + BLOCKS]
    scales = part(tensors, base + SCALES, blocks)
    for tensor in (blocks, scales):
        check_part(tensor, ("U8",), (None,) * len(tensor.shape), "mxfp4")
    are_blocks = len(blocks.shape) == 4 and blocks.shape[3] == BLOCK_BYTES
    if not are_blocks or scales.shape != blocks.shape[:3]:
        raise CheckpointCorruptError(
            f"tensors {in_file(blocks)} and {in_file(scales)} have shapes {list(blocks.shape)} and "
            f"{list(scales.shape)}; mxfp4 needs [E, rows, K / {BLOCK}, {BLOCK_BYTES}] and "
            f"[E, rows, K / {BLOCK}]; {GET_ANOTHER}"
        )
    num_experts, rows, num_blocks, _ = blocks.shape
    return CheckpointTensor(
        base,
        (num_experts, rows, num_blocks * BLOCK),
        (*blocks.stored, *scales.stored),
        partial(_stack, name=in_file(scales)),
        is_quantized=True,
    )


def _stack(blocks: Tensor, scales: Tensor, name: str) -> QuantizedStack:
    def decode(expert: int) -> QuantizedWeight:
        return QuantizedWeight(
            codes=unpacked(blocks[expert].flatten(1), 4),
            scales=checked_scales(scales[expert], name),
            table=e2m1_table(),
            group_size=BLOCK,
        )

    return QuantizedStack(len(blocks), decode)
