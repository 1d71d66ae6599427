"""Mxfp4 experts, as gpt-oss stores them: 4-bit floats, with one power of two for each 32.

A matrix `[rows, K]` of each expert is stored as `NAME_blocks`, uint8 `[E, rows, K / 32, 16]`, two
elements in a byte, the lower four bits first, and `NAME_scales`, uint8 `[E, rows, K / 32]`, which
are exponents with a bias of 127 (OCP Microscaling Formats, version 1.0). The model gets `NAME`,
`[E, K, rows]`, as in checkpoints that are not quantized.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.worker.loading.formats.checkpoint_tensor import CheckpointTensor, Tensors

BLOCKS, SCALES = "_blocks", "_scales"
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1; the fourth bit is the sign
EXPONENT_BIAS = 127
BLOCK_BYTES = 16


def dequantize_mxfp4(tensors: Tensors, dtype: torch.dtype) -> dict[str, CheckpointTensor]:
    """Return the tensors with blocks and scales computed to matrices.

    Args:
        tensors: Tensors of the checkpoint.
        dtype: Dtype of the matrices.

    Raises:
        CheckpointCorruptError: Blocks have no scales, or dtypes or shapes are wrong.
    """
    bases = [name.removesuffix(BLOCKS) for name in tensors if name.endswith(BLOCKS)]
    used = {base + suffix for base in bases for suffix in (BLOCKS, SCALES)}
    plain = {name: tensor for name, tensor in tensors.items() if name not in used}
    return plain | {base: _dequantized(base, tensors, dtype) for base in bases}


def decode_mxfp4(
    blocks: Tensor,  # [E, rows, K / 32, 16] uint8
    scales: Tensor,  # [E, rows, K / 32] uint8
    dtype: torch.dtype,
) -> Tensor:
    """Return the matrices `[E, K, rows]`; powers of two below the dtype's smallest become zero."""
    table = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
    num_experts, rows = blocks.shape[:2]
    out = torch.empty((num_experts, rows, blocks.shape[2] * 2 * BLOCK_BYTES), dtype=dtype)
    for expert in range(num_experts):  # so that float32 values of one expert exist at a time
        nibbles = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), -1)  # low, high
        values = table[nibbles.flatten(-2).int()]  # [rows, K / 32, 32]
        exponents = scales[expert].int().sub_(EXPONENT_BIAS).unsqueeze(-1)
        out[expert] = torch.ldexp(values, exponents).flatten(-2)
    return out.transpose(1, 2)


def _dequantized(base: str, tensors: Tensors, dtype: torch.dtype) -> CheckpointTensor:
    blocks, scales = tensors[base + BLOCKS], tensors.get(base + SCALES)
    if scales is None:
        raise CheckpointCorruptError(
            f"tensor {blocks.name} has no scales: {base}{SCALES} is missing"
        )
    for tensor in (*blocks.stored, *scales.stored):
        if tensor.dtype != "U8":
            raise CheckpointCorruptError(
                f"tensor {tensor.name} has the dtype {tensor.dtype}; mxfp4 needs U8"
            )
    are_blocks = len(blocks.shape) == 4 and blocks.shape[3] == BLOCK_BYTES
    if not are_blocks or scales.shape != blocks.shape[:3]:
        raise CheckpointCorruptError(
            f"tensors {blocks.name} and {scales.name} have shapes {list(blocks.shape)} and "
            f"{list(scales.shape)}; mxfp4 needs [E, rows, K / 32, {BLOCK_BYTES}] and "
            "[E, rows, K / 32]"
        )
    num_experts, rows, num_blocks, _ = blocks.shape
    shape = (num_experts, num_blocks * 2 * BLOCK_BYTES, rows)
    decode = partial(decode_mxfp4, dtype=dtype)
    return CheckpointTensor(base, shape, (*blocks.stored, *scales.stored), decode)
