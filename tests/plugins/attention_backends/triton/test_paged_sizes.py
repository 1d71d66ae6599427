"""Tile sizes for a GPU: they hold a group of heads and do not spill, for every supported shape."""

import itertools

import kv_pages
import pytest
import torch

from quire.interfaces.kv_cache import DTYPE_BYTES
from quire_attention_backends.shared.launch_sizes import next_power_of_two
from quire_attention_backends.triton import paged_sizes
from quire_attention_backends.triton.paged_sizes import (
    K_TILE_BYTES,
    decode_sizes,
    prompt_sizes,
)

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 256)
HEADS = ((8, 8), (8, 2), (6, 2), (40, 2), (96, 1))
TYPES = [
    *itertools.product(
        (torch.bfloat16, torch.float16, torch.float32), ("bfloat16", "float8_e4m3fn", "int8")
    ),
    (torch.float32, "float32"),
]


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that selects a compute capability; no GPU is needed."""
    monkeypatch.setattr(paged_sizes, "interprets_kernels", lambda: False)

    def choose(capability):
        monkeypatch.setattr(paged_sizes, "_has_warp_groups", lambda: capability >= 90)

    choose(90)
    return choose


def shape_of(head_dim=128, heads=(8, 2), dtype=torch.bfloat16, kv_dtype="bfloat16", **more):
    return kv_pages.shape_of(kv_dtype, *heads, head_dim, dtype=dtype, **more)


def every_shape(**more):
    for head_dim, heads, (dtype, kv_dtype) in itertools.product(HEAD_DIMS, HEADS, TYPES):
        yield shape_of(head_dim, heads, dtype, kv_dtype, **more)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("capability", [80, 90])
def test_a_tile_holds_a_group_and_a_tile_of_k_is_of_one_size(gpu, capability, batch_invariant):
    gpu(capability)
    for shape in every_shape(batch_invariant=batch_invariant):
        group = shape.num_heads // shape.num_kv_heads
        itemsize = max(DTYPE_BYTES[shape.kv_dtype], shape.dtype.itemsize)
        for sizes in (decode_sizes(shape), prompt_sizes(shape)):
            assert sizes.rows >= max(16, group)
            assert sizes.rows.bit_count() == sizes.tokens.bit_count() == 1
            assert 16 <= sizes.tokens <= 64
        if not batch_invariant:
            tile = decode_sizes(shape).tokens
            assert tile == 16 or tile * next_power_of_two(shape.head_dim) * itemsize <= K_TILE_BYTES


def test_in_batch_invariant_mode_prompts_and_single_tokens_have_the_same_tiles(gpu):
    for shape in every_shape(batch_invariant=True):
        if shape.dtype != torch.float32:
            assert decode_sizes(shape) == prompt_sizes(shape)


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_what_is_decoded_in_registers_has_smaller_tiles(gpu, kv_dtype):
    plain = decode_sizes(shape_of(256))
    assert decode_sizes(shape_of(256, kv_dtype=kv_dtype)).tokens * 2 == plain.tokens
    assert decode_sizes(shape_of(128, kv_dtype=kv_dtype)).num_warps == 8
    assert decode_sizes(shape_of(32, kv_dtype=kv_dtype)).num_warps == 4
    fixed = prompt_sizes(shape_of(128, kv_dtype=kv_dtype, batch_invariant=True))
    kept = prompt_sizes(shape_of(128, batch_invariant=True))
    assert (fixed.rows, fixed.tokens) == (kept.rows // 2, kept.tokens // 2)


def test_prompts_of_wide_heads_have_fewer_rows_where_operands_come_from_registers(gpu):
    wide, decoded = shape_of(256), shape_of(256, kv_dtype="float8_e4m3fn")
    assert [prompt_sizes(shape).rows for shape in (wide, decoded)] == [128, 64]
    gpu(80)
    assert [prompt_sizes(shape).rows for shape in (wide, decoded)] == [64, 64]


def test_before_9_0_heads_of_128_that_are_masked_or_decoded_have_half_a_tile(gpu):
    tight = [
        shape_of(128, kv_dtype="int8"),  # decoded
        shape_of(112),  # padded
        shape_of(128, (6, 2)),  # a group of three
    ]
    roomy = [shape_of(128), shape_of(64, kv_dtype="int8")]
    assert [prompt_sizes(shape).tokens for shape in tight + roomy] == [64] * 5
    gpu(80)
    assert [prompt_sizes(shape).tokens for shape in tight] == [32] * 3
    assert [prompt_sizes(shape).tokens for shape in roomy] == [64] * 2


def test_float32_is_multiplied_sixteen_rows_at_a_time(gpu):
    for shape in (shape_of(128, dtype=torch.float32), shape_of(64, (8, 8), torch.float32)):
        assert decode_sizes(shape).rows == prompt_sizes(shape).rows == 16
