"""Float8 weights with a scale for each block, as DeepSeek-V3 stores them.

A linear layer has `weight`, float8 `[N, K]`, and `weight_scale_inv`, one factor for each block of
`weight_block_size` elements, `[ceil(N / rows), ceil(K / columns)]`, or one for the whole weight. In
spite of its name it is multiplied: `w = weight * scale`. AutoFP8 calls it `weight_scale`. Experts
may be stacked in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.fp8_config import Block, FP8Config
from quire_quantizations.checkpoints.weight_parts import (
    FLOATS,
    WEIGHT,
    check_part,
    check_positive,
    check_scaled,
    in_file,
    part,
    with_weights,
)
from quire_quantizations.number_tables import float8_table

SCALE, OTHER_SCALE = "_scale_inv", "_scale"
ACTIVATION_SCALES = (".activation_scale", ".input_scale")  # of a product in float8
FLOAT8 = ("F8_E4M3", "F8_E5M2")
POWERS = "F8_E8M0"  # dtype of scales that are powers of two


class BlockFP8(PreparedQuantization):
    """Reader of float8 checkpoints.

    Args:
        options: Options of the checkpoint.
    """

    def __init__(self, options: FP8Config) -> None:
        self.block = options.block

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BlockFP8:
        """Read the options, whose errors are those of `FP8Config.read`."""
        return cls(FP8Config.read(config))

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with scaled weights in place of float8 ones and their scales."""
        del read
        _check_scales(tensors)
        weights = {
            name: self._weight(tensor, tensors)
            for name, tensor in tensors.items()
            if tensor.stored[0].dtype in FLOAT8
            and len(tensor.shape) > 1
            and not name.endswith((SCALE, OTHER_SCALE))
        }
        parts = {name + end for name in weights for end in (SCALE, OTHER_SCALE)}
        parts |= {name for name in tensors if name.endswith(ACTIVATION_SCALES)}
        return with_weights(tensors, parts, weights, "fp8")

    def _weight(self, weight: CheckpointTensor, tensors: Tensors) -> CheckpointTensor:
        other = tensors.get(weight.name + OTHER_SCALE)
        scale = other or part(tensors, weight.name + SCALE, weight)
        if other is not None and weight.name + SCALE in tensors:
            raise CheckpointCorruptError(
                f"tensor {in_file(weight)} has two scales, {weight.name}{SCALE} and {other.name}; "
                "remove the one that is not its own"
            )
        check_part(scale, (*FLOATS, POWERS), (None,) * len(scale.shape), "fp8")
        rows, columns = self.block or weight.shape[-2:]
        block = (max(rows, 1), max(columns, 1))
        blocks = [-(-size // step) for size, step in zip(weight.shape[-2:], block, strict=True)]
        expected = (*weight.shape[:-2], *blocks)
        if scale.shape not in ((), (1,), expected):
            raise CheckpointCorruptError(
                f"tensor {in_file(scale)} has shape {list(scale.shape)}, but a weight of shape "
                f"{list(weight.shape)} in blocks of {list(block)} needs {list(expected)}; "
                f"weight_block_size in config.json is {self.block and list(self.block)}: correct "
                "it, or copy the checkpoint completely"
            )
        is_matrix = len(weight.shape) == 2
        decode = partial(
            decoded if is_matrix else _stack, block=block, names=(in_file(weight), in_file(scale))
        )
        stored = (*weight.stored, *scale.stored)
        return CheckpointTensor(weight.name, weight.shape, stored, decode, is_quantized=is_matrix)


def _check_scales(tensors: Tensors) -> None:
    """Check that scales are those of float8 weights.

    Raises:
        CheckpointCorruptError: The weight is missing, or is none.
    """
    for name, scale in tensors.items():
        if name.endswith((SCALE, WEIGHT + OTHER_SCALE)):
            weight = part(tensors, name.removesuffix("_inv").removesuffix(OTHER_SCALE), scale)
            num_dims = max(2, len(weight.shape))
            check_part(weight, FLOAT8, (None,) * num_dims, f"a weight with {name}")


def decoded(
    weight: Tensor,  # [N, K] float8
    scale: Tensor,  # [ceil(N / rows), ceil(K / columns)]; [] or [1] for the whole weight
    block: Block,
    names: tuple[str, str],
) -> QuantizedWeight:
    """Return the weight, with a scale of each row and block of columns.

    Args:
        weight: Elements.
        scale: Scales.
        block: Rows and columns that share a scale.
        names: Names of both tensors and of their files, for errors.

    Raises:
        CheckpointCorruptError: Elements or scales are not those of a weight.
    """
    outputs, inputs = weight.shape
    if scale.dim() < 2:
        block, scale = (outputs, inputs), scale.reshape(1, 1)
    rows, columns = block
    found = QuantizedWeight(
        codes=weight.view(torch.uint8),
        scales=check_positive(scale, names[1]).repeat_interleave(rows, 0)[:outputs],
        table=float8_table(weight.dtype),
        group_size=columns,
    )
    return check_scaled(found, names[0])


def _stack(weight: Tensor, scale: Tensor, block: Block, names: tuple[str, str]) -> Tensor:
    """Return matrices `[..., N, K]` in bfloat16, which may be transposed in the model."""
    out = torch.empty(weight.shape, dtype=torch.bfloat16)
    for index in product(*map(range, weight.shape[:-2])):
        own = scale if scale.dim() < 2 else scale[index]
        out[index] = decoded(weight[index], own, block, names).dequantized()
    return out
