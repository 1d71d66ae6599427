"""Float8 weights with a scale for each block, as DeepSeek-V3 stores them.

A linear layer has `weight`, float8 `[N, K]`, and `weight_scale_inv`, one factor for each block of
`weight_block_size` elements, `[ceil(N / rows), ceil(K / columns)]`, or one for the whole weight. In
spite of its name it is multiplied: `w = weight * scale`. Experts may be stacked in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.worker.loading.formats.checkpoint_tensor import CheckpointTensor, Tensors

SCALE = "_scale_inv"
ACTIVATION_SCALES = (".activation_scale", ".input_scale")  # of a product in float8
FLOAT8 = ("F8_E4M3", "F8_E5M2")

Block = tuple[int, int]


def dequantize_fp8(
    tensors: Tensors, config: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, CheckpointTensor]:
    """Return the tensors with each float8 weight multiplied by its scale.

    Args:
        tensors: Tensors of the checkpoint.
        config: The checkpoint's `quantization_config`.
        dtype: Dtype of the weights.

    Raises:
        CheckpointCorruptError: A weight has no scale, or one of another shape.
    """
    block = _block_size(config)
    scales = {name + SCALE for name, tensor in tensors.items() if _is_float8(tensor)}
    return {
        name: _dequantized(tensor, tensors, block, dtype) if _is_float8(tensor) else tensor
        for name, tensor in tensors.items()
        if name not in scales and not name.endswith(ACTIVATION_SCALES)
    }


def multiply_blocks(
    weight: Tensor,  # [..., N, K] float8
    scale: Tensor,  # [..., ceil(N / rows), ceil(K / columns)]; [] or [1] for the whole weight
    block: Block,
    dtype: torch.dtype,
) -> Tensor:
    """Return `weight * scale`, computed in float32, `[..., N, K]` in the given dtype."""
    if scale.dim() < 2:
        block = (weight.shape[-2], weight.shape[-1])
        scale = scale.expand(*weight.shape[:-2], 1, 1)
    rows, columns = block
    scale = scale.float()
    out = torch.empty(weight.shape, dtype=dtype)
    for index in product(*map(range, weight.shape[:-2])):
        for i, factors in enumerate(scale[index]):  # [columns of blocks]
            part = slice(i * rows, (i + 1) * rows)
            wide = factors.repeat_interleave(columns)[: weight.shape[-1]]
            out[index][part] = weight[index][part].float() * wide
    return out


def _is_float8(tensor: CheckpointTensor) -> bool:
    return tensor.stored[0].dtype in FLOAT8 and len(tensor.shape) > 1


def _block_size(config: Mapping[str, Any]) -> Block:
    """Return `weight_block_size`; without it a scale is for the whole weight."""
    size = config.get("weight_block_size")
    if size is None:
        return (1, 1)
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if not is_pair or not all(isinstance(n, int) and n > 0 for n in size):
        raise CheckpointCorruptError(
            f"quantization_config.weight_block_size of config.json must be two whole numbers above "
            f"0, such as [128, 128], got {size!r}"
        )
    return (size[0], size[1])


def _dequantized(
    weight: CheckpointTensor, tensors: Tensors, block: Block, dtype: torch.dtype
) -> CheckpointTensor:
    scale = tensors.get(weight.name + SCALE)
    file = weight.stored[0].file.name
    if scale is None:
        raise CheckpointCorruptError(
            f"tensor {weight.name} in {file} is float8, and {weight.name}{SCALE} is missing"
        )
    blocks = [-(-size // step) for size, step in zip(weight.shape[-2:], block, strict=True)]
    expected = (*weight.shape[:-2], *blocks)
    if scale.shape not in ((), (1,), expected):
        raise CheckpointCorruptError(
            f"tensor {scale.name} in {scale.stored[0].file.name} has shape {list(scale.shape)}, "
            f"but a weight of shape {list(weight.shape)} in blocks of {list(block)} needs "
            f"{list(expected)}"
        )
    compute = partial(multiply_blocks, block=block, dtype=dtype)
    return CheckpointTensor(weight.name, weight.shape, (*weight.stored, *scale.stored), compute)
