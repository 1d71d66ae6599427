"""Quantized weights of GGUF files: rows of blocks, each with its scales before or behind its codes.

A block of type `_0` is `d * q`, one of type `_1` is `d * q + m`, for 32 elements. In a super-block
of 256, the scales and minimums of groups of 32 (of 16 in `Q2_K`, `Q3_K` and `Q6_K`) are small
integers themselves: `d * scale * q - dmin * minimum`; `Q3_K`, `Q6_K` and `IQ4_XS` have no minimums.
Codes of `MXFP4` are 4-bit floats, and those of `IQ4` are indices of integers that are not evenly
spaced; the integers are taken as codes of 8 bits, since more kernels have these. Scales are
multiplied first, in float32, and so dequantized weights are bitwise those of llama.cpp's reference.
Nibbles are stored low ones first: the low ones of all bytes of a group are its first elements, the
high ones those behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, StoredTensor, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.gguf_config import BLOCK_TYPES, BlockType
from quire_quantizations.checkpoints.unpacking import unpacked
from quire_quantizations.checkpoints.weight_parts import check_finite
from quire_quantizations.number_tables import e2m1_table, powers_of_two

SCALE_BYTES = 12  # of the scales and minimums of a super-block
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

Codes = tuple[Tensor, Tensor, Tensor | None]
"""Codes uint8 `[B, elements]`, scales `[B, groups]` and offsets `[B, groups]` of B blocks."""


class GGUF(PreparedQuantization):
    """Reader of the weights of GGUF files, whose layout the host has made that of Hugging Face."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GGUF:
        """Return the reader; types are those of the tensors."""
        del config
        return cls()

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with weights in place of those in blocks."""
        del read
        return {name: _weight(tensor) for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A type of blocks.

    Attributes:
        num_bytes: Bytes of a block.
        decode: Function from the bytes `[B, num_bytes]` of some blocks.
    """

    num_bytes: int
    decode: Callable[[Tensor], Codes]


def _weight(tensor: CheckpointTensor) -> CheckpointTensor:
    """Return a weight in place of a tensor in blocks."""
    if len(tensor.stored) > 1:
        return replace(tensor, compute=partial(_of_numbers, tensor=tensor))
    blocks = BLOCKS.get(tensor.stored[0].dtype)
    if blocks is None:
        return tensor
    if len(tensor.shape) != 2:
        stored = tensor.stored[0]
        raise CheckpointCorruptError(
            f"tensor {stored.name} in {stored.file.name} has shape {list(tensor.shape)} and type "
            f"{stored.dtype}; quire reads matrices in blocks only"
        )
    decode = partial(_decoded, tensor=tensor, blocks=blocks)
    return CheckpointTensor(tensor.name, tensor.shape, tensor.stored, decode, is_quantized=True)


def _of_numbers(*stored: Tensor, tensor: CheckpointTensor) -> Any:
    """Return a tensor that is computed from several, each of which is dequantized first."""
    return tensor.value(*map(_numbers, stored, tensor.stored))


def _numbers(rows: Tensor, stored: StoredTensor) -> Tensor:
    """Return the numbers of a tensor, which may be in blocks."""
    if stored.dtype not in BLOCKS:
        return rows.float()
    flat = rows.flatten(0, -2)
    tensor = CheckpointTensor(stored.name, (len(flat), stored.shape[-1]), (stored,))
    weight = _decoded(flat, tensor=tensor, blocks=BLOCKS[stored.dtype])
    return weight.dequantized().view(stored.shape)


def _decoded(stored: Tensor, *, tensor: CheckpointTensor, blocks: _Blocks) -> QuantizedWeight:
    kind = BLOCK_TYPES[tensor.stored[0].dtype]
    rows: Any = tensor.value(stored)  # uint8 [N, bytes of a row]
    codes, scales, offsets = blocks.decode(rows.reshape(-1, blocks.num_bytes))
    groups, name = (len(rows), -1), f"{tensor.stored[0].name} in {tensor.stored[0].file.name}"
    return QuantizedWeight(
        codes=codes.view(tensor.shape),
        scales=check_finite(scales, name).view(groups),
        table=_table(kind),
        group_size=kind.group_size,
        offsets=None if offsets is None else check_finite(offsets, name).view(groups),
    )


def _table(kind: BlockType) -> Tensor:
    if isinstance(kind.values, range):
        return torch.tensor(kind.values, dtype=torch.float32)
    return e2m1_table().add_(0.0)  # whose zero has no sign in llama.cpp


def _q4_0(blocks: Tensor) -> Codes:
    scale, codes = _parts(blocks, 2, 16)
    return _nibbles(codes), _half(scale), None


def _q4_1(blocks: Tensor) -> Codes:
    scale, least, codes = _parts(blocks, 2, 2, 16)
    return _nibbles(codes), _half(scale), _half(least)


def _q5_0(blocks: Tensor) -> Codes:
    scale, high, codes = _parts(blocks, 2, 4, 16)
    return _nibbles(codes) | (unpacked(high, 1) << 4), _half(scale), None


def _q5_1(blocks: Tensor) -> Codes:
    scale, least, high, codes = _parts(blocks, 2, 2, 4, 16)
    return _nibbles(codes) | (unpacked(high, 1) << 4), _half(scale), _half(least)


def _q8_0(blocks: Tensor) -> Codes:
    scale, codes = _parts(blocks, 2, 32)
    return codes ^ 128, _half(scale), None  # a signed byte above -128


def _q2_k(blocks: Tensor) -> Codes:
    packed, codes, scale, least = _parts(blocks, 16, 64, 2, 2)
    scales, offsets = _half(scale) * (packed & 15).float(), -(_half(least) * (packed >> 4).float())
    return _pairs_of_bits(codes), scales, offsets


def _q3_k(blocks: Tensor) -> Codes:
    high, codes, packed, scale = _parts(blocks, 32, 64, SCALE_BYTES, 2)
    bits = (high.unsqueeze(1) >> _shifts(1, 8)) & 1  # bit i of a byte is for group i of 32
    low, upper = _parts(packed, 8, 4)  # four bits of each of 16 scales, and two
    wide = _nibbles(low) | (((upper.unsqueeze(1) >> _shifts(2, 4)) & 3).flatten(1) << 4)
    scales = _half(scale) * (wide.float() - 32)
    return _pairs_of_bits(codes) | (bits.flatten(1) << 2), scales, None


def _q4_k(blocks: Tensor) -> Codes:
    scale, least, packed, codes = _parts(blocks, 2, 2, SCALE_BYTES, 128)
    pairs = _nibbles(codes.reshape(-1, 4, 32))  # two groups of 32 in 32 bytes
    return pairs.flatten(1), *_scales_and_offsets(scale, least, packed)


def _q5_k(blocks: Tensor) -> Codes:
    scale, least, packed, high, codes = _parts(blocks, 2, 2, SCALE_BYTES, 32, 128)
    pairs = _nibbles(codes.reshape(-1, 4, 32)).view(-1, 8, 32)
    bits = (high.unsqueeze(1) >> _shifts(1, 8)) & 1  # bit i of a byte is for group i
    return (pairs | (bits << 4)).flatten(1), *_scales_and_offsets(scale, least, packed)


def _q6_k(blocks: Tensor) -> Codes:
    low, high, scales, scale = _parts(blocks, 128, 64, 16, 2)
    # Of each half: 64 bytes with four bits of elements l and l + 64, 32 with two of l + 32 * i.
    lows = _nibbles(low.reshape(-1, 2, 64))  # [B, 2, 128]
    highs = (high.reshape(-1, 2, 1, 32) >> _shifts(2, 4)) & 3  # [B, 2, 4, 32]
    codes = lows | (highs.flatten(2) << 4)
    return codes.flatten(1), _half(scale) * scales.view(torch.int8).float(), None


def _iq4_nl(blocks: Tensor) -> Codes:
    scale, codes = _parts(blocks, 2, 16)
    return _iq4_codes(_nibbles(codes)), _half(scale), None


def _iq4_xs(blocks: Tensor) -> Codes:
    scale, upper, low, codes = _parts(blocks, 2, 2, 4, 128)
    wide = unpacked(low, 4) | (unpacked(upper, 2) << 4)  # neighbours are in the same byte here
    groups = _nibbles(codes.reshape(-1, 8, 16))
    return _iq4_codes(groups).flatten(1), _half(scale) * (wide.float() - 32), None


def _mxfp4(blocks: Tensor) -> Codes:
    exponent, codes = _parts(blocks, 1, 16)
    return _nibbles(codes), powers_of_two(exponent), None


def _scales_and_offsets(
    scale: Tensor,
    least: Tensor,
    packed: Tensor,  # uint8 [B, 12]
) -> tuple[Tensor, Tensor]:
    """Return `d * scale` and `-dmin * minimum` of eight groups, `[B, 8]` each.

    Bytes 0 to 3 have the scales of groups 0 to 3, and bytes 4 to 7 their minimums. Their upper two
    bits are those of groups 4 to 7, whose lower four bits are in bytes 8 to 11: the scale's first.
    """
    scales, minimums, both = _parts(packed, 4, 4, 4)
    wide_scales = torch.cat((scales & 63, (both & 15) | ((scales >> 6) << 4)), 1)
    wide_minimums = torch.cat((minimums & 63, (both >> 4) | ((minimums >> 6) << 4)), 1)
    return _half(scale) * wide_scales.float(), -(_half(least) * wide_minimums.float())


def _parts(blocks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Return the parts of the blocks' bytes that have these sizes."""
    return tuple(torch.split(blocks, list(sizes), 1))


def _half(numbers: Tensor) -> Tensor:
    """Return the float16 number of each block in float32, `[B, 1]`."""
    return numbers.contiguous().view(torch.float16).float()


def _iq4_codes(indices: Tensor) -> Tensor:
    """Return the codes of 8 bits of the integers that nibbles stand for."""
    integers = torch.tensor(IQ4_VALUES) + 128
    return integers.to(torch.uint8)[indices.long()]


def _pairs_of_bits(codes: Tensor) -> Tensor:  # uint8 [B, 64]
    """Return the pairs of bits of the bytes: of each half the lowest of all bytes, and so on."""
    halves = codes.reshape(-1, 2, 1, 32)
    return ((halves >> _shifts(2, 4)) & 3).flatten(1)


def _nibbles(codes: Tensor) -> Tensor:
    """Return the low nibbles of the bytes, and the high ones behind them."""
    return torch.cat((codes & 15, codes >> 4), -1)


def _shifts(bits: int, count: int) -> Tensor:
    """Return the shifts of the parts of a byte, `[count, 1]`."""
    return torch.arange(0, bits * count, bits, dtype=torch.uint8).view(count, 1)


BLOCKS: Mapping[str, _Blocks] = {
    "Q4_0": _Blocks(18, _q4_0),
    "Q4_1": _Blocks(20, _q4_1),
    "Q5_0": _Blocks(22, _q5_0),
    "Q5_1": _Blocks(24, _q5_1),
    "Q8_0": _Blocks(34, _q8_0),
    "Q2_K": _Blocks(84, _q2_k),
    "Q3_K": _Blocks(110, _q3_k),
    "Q4_K": _Blocks(144, _q4_k),
    "Q5_K": _Blocks(176, _q5_k),
    "Q6_K": _Blocks(210, _q6_k),
    "IQ4_NL": _Blocks(18, _iq4_nl),
    "IQ4_XS": _Blocks(136, _iq4_xs),
    "MXFP4": _Blocks(17, _mxfp4),
}
