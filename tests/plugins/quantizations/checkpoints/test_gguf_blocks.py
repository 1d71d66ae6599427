"""Blocks of GGUF are the numbers that the published layout says, bit for bit."""

import struct
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import NUMBERS

from quire.compose.gguf.tensor_types import TYPES
from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, StoredTensor
from quire_quantizations.checkpoints.gguf import BLOCKS, GGUF

KINDS = sorted(BLOCKS)
HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "Q2_K": (80, 82), "Q3_K": (108,), "MXFP4": (),
}  # fmt: skip
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)
SYMMETRIC = ("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
F32 = np.float32


def half(block, position):
    return F32(struct.unpack_from("<e", block, position)[0])


def six_bits(packed, group):
    """Scale and minimum of one group of a super-block."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    both = packed[group + 4]
    return (
        (both & 15) | (packed[group - 4] >> 6) << 4,
        (both >> 4) | (packed[group] >> 6) << 4,
    )


def three_bit_scale(packed, group):
    """Scale of a group of 16 in a super-block of Q3_K: four bits, and two further ones."""
    low = packed[group % 8] >> 4 * (group // 8) & 15
    return (low | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4) - 32


def nibble(codes, i, half_size):
    return codes[i % half_size] & 15 if i < half_size else codes[i - half_size] >> 4


def element(kind, block, i):
    """Element i of a block, by the layout of ggml-common.h, in float32."""
    if kind == "Q8_0":
        return half(block, 0) * F32(struct.unpack_from("b", block, 2 + i)[0])
    if kind == "Q4_0":
        return half(block, 0) * F32(nibble(block[2:], i, 16) - 8)
    if kind == "IQ4_NL":
        return half(block, 0) * F32(IQ4[nibble(block[2:], i, 16)])
    if kind == "IQ4_XS":
        group, l = divmod(i, 32)  # noqa: E741
        (upper,) = struct.unpack_from("<H", block, 2)
        low = block[4 + group // 2] >> 4 * (group % 2) & 15
        scale = (low | (upper >> 2 * group & 3) << 4) - 32
        return half(block, 0) * F32(scale) * F32(IQ4[nibble(block[8 + 16 * group :], l, 16)])
    if kind == "MXFP4":
        return F32(2.0 ** (block[0] - 127)) * F32(E2M1[nibble(block[1:], i, 16)])
    if kind in ("Q2_K", "Q3_K"):
        part, l = divmod(i, 128)  # noqa: E741
        start = 16 if kind == "Q2_K" else 32
        code = block[start + 32 * part + l % 32] >> 2 * (l // 32) & 3
        if kind == "Q2_K":
            packed = block[i // 16]
            return half(block, 80) * F32(packed & 15) * F32(code) - half(block, 82) * F32(
                packed >> 4
            )
        bit = block[i % 32] >> i // 32 & 1
        return (
            half(block, 108)
            * F32(three_bit_scale(block[96:108], i // 16))
            * F32(code - 4 + 4 * bit)
        )
    if kind == "Q4_1":
        return half(block, 0) * F32(nibble(block[4:], i, 16)) + half(block, 2)
    if kind in ("Q5_0", "Q5_1"):
        start = 2 if kind == "Q5_0" else 4
        (high,) = struct.unpack_from("<I", block, start)
        code = nibble(block[start + 4 :], i, 16) | (high >> i & 1) << 4
        if kind == "Q5_0":
            return half(block, 0) * F32(code - 16)
        return half(block, 0) * F32(code) + half(block, 2)
    if kind == "Q6_K":
        part, l = divmod(i, 128)  # noqa: E741
        low, high = block[64 * part :], block[128 + 32 * part :]
        code = nibble(low, l, 64) | (high[l % 32] >> 2 * (l // 32) & 3) << 4
        scale = struct.unpack_from("b", block, 192 + i // 16)[0]
        return half(block, 208) * F32(scale) * F32(code - 32)
    group, l = divmod(i, 32)  # noqa: E741
    scale, least = six_bits(block[4:16], group)
    codes = block[16:] if kind == "Q4_K" else block[48:]
    code = nibble(codes[32 * (group // 2) :], l + 32 * (group % 2), 32)
    if kind == "Q5_K":
        code |= (block[16 + l] >> group & 1) << 4
    return half(block, 0) * F32(scale) * F32(code) - half(block, 2) * F32(least)


def random_blocks(kind, count, seed=0):
    """Random bytes, in which the float16 numbers are finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, TYPES[NUMBERS[kind]].block_bytes), dtype=np.uint8)
    for position in HALVES.get(kind, (0,)):
        blocks[:, position + 1] &= 0xBF  # the largest exponents
    if kind == "MXFP4":
        blocks[:, 0] %= 250  # so that elements are finite, too
    return blocks


def reading(kind, shape):
    stored = StoredTensor("layer.weight", Path("m.gguf"), shape, kind, 0)
    tensor = CheckpointTensor("layer.weight", shape, (stored,))
    return GGUF.from_config({"quant_method": "gguf"}).read({"layer.weight": tensor}, lambda _: None)


def read(blocks, kind, rows=1):
    shape = (rows, len(blocks) // rows * TYPES[NUMBERS[kind]].block_size)
    (tensor,) = reading(kind, shape).values()
    assert tensor.is_quantized
    weight = tensor.value(torch.from_numpy(blocks).view(rows, -1))
    assert weight.shape == shape
    return weight


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool((ours.view(np.uint32) == theirs.view(np.uint32)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_each_element_has_the_bits_of_the_layouts_formula(kind):
    blocks = random_blocks(kind, 6)
    expected = [
        [element(kind, block.tobytes(), i) for i in range(TYPES[NUMBERS[kind]].block_size)]
        for block in blocks
    ]
    found = read(blocks, kind, rows=2).dequantized().numpy()
    assert same_bits(found, np.array(expected, F32).reshape(2, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpps_own_reader_gives_the_same_bits(kind):
    pytest.importorskip("gguf")
    gguf = import_module("gguf")
    number = gguf.GGMLQuantizationType[kind]
    assert gguf.GGML_QUANT_SIZES[number] == (
        TYPES[NUMBERS[kind]].block_size,
        TYPES[NUMBERS[kind]].block_bytes,
    )
    blocks = random_blocks(kind, 500).reshape(5, -1)
    ours = read(blocks.reshape(500, -1), kind, rows=5).dequantized().numpy()
    assert same_bits(ours, gguf.dequantize(blocks, number))


@pytest.mark.parametrize("kind", KINDS)
def test_symmetric_types_have_no_offsets(kind):
    weight = read(random_blocks(kind, 4), kind)
    assert (weight.offsets is None) == (kind in SYMMETRIC)
    assert weight.group_size == (16 if kind in ("Q2_K", "Q3_K", "Q6_K") else 32)
    assert int(weight.codes.max()) < len(weight.table)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MXFP4"])
def test_scales_that_are_no_numbers_are_named(kind):
    blocks = random_blocks(kind, 3)
    position = HALVES.get(kind, (0,))[-1]
    blocks[1, position : position + 2] = (0x00, 0x7C)
    if kind in ("Q4_K", "Q5_K"):
        blocks[1, 4:16] = 1
    if kind == "Q2_K":
        blocks[1, :16] = 0x11
    with pytest.raises(
        CheckpointCorruptError, match=r"layer\.weight in m\.gguf has \d+ values .* inf"
    ):
        read(blocks, kind)


def test_plain_tensors_stay_and_vectors_in_blocks_are_named():
    (tensor,) = reading("F32", (4,)).values()
    assert (tensor.is_quantized, tensor.shape) == (False, (4,))
    with pytest.raises(CheckpointCorruptError, match=r"shape \[64\] and type Q4_0; .* matrices"):
        reading("Q4_0", (64,))
