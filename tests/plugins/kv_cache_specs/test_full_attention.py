"""Full attention keeps every block to the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.full_attention import FullAttentionSpec

LAYER = KVLayer("layers.0.attn", "full_attention", num_kv_heads=8, head_dim=64)


class TestFullAttention(KVCacheSpecContract):
    spec_class = FullAttentionSpec
    layer = LAYER
    tp_sizes = (1, 2, 4, 8, 16)


class TestOneHead(KVCacheSpecContract):
    spec_class = FullAttentionSpec
    layer = KVLayer("layers.0.attn", "full_attention", num_kv_heads=1, head_dim=128)
    kv_dtypes = ("bfloat16",)


def test_a_page_is_k_and_v_of_all_heads():
    assert FullAttentionSpec(LAYER, 16, "bfloat16").page_bytes == 2 * 16 * 8 * 64 * 2


def test_float8_takes_a_byte_a_number_and_int8_a_scale_for_each_row_besides():
    float8, int8 = (FullAttentionSpec(LAYER, 16, name) for name in ("float8_e4m3fn", "int8"))
    assert (float8.row_bytes, float8.page_bytes) == (64, 2 * 16 * 8 * 64)
    assert (int8.row_bytes, int8.page_bytes) == (64 + 4, 2 * 16 * 8 * (64 + 4))


def test_two_devices_have_half_the_heads_each():
    assert FullAttentionSpec(LAYER, 16, "float32", 2).page_bytes == 2 * 16 * 4 * 64 * 4


def test_more_devices_than_heads_keep_one_head_each():
    assert FullAttentionSpec(LAYER, 16, "float32", 32).page_bytes == 2 * 16 * 64 * 4


@given(st.integers(0, 10_000), st.integers(0, 100), st.integers(1, 256))
def test_the_blocks_hold_all_tokens_and_none_is_empty(num_tokens, lookahead, block_size):
    blocks = FullAttentionSpec(LAYER, block_size, "float32").blocks_needed(num_tokens, lookahead)
    total = num_tokens + lookahead
    assert blocks * block_size >= total
    assert (blocks - 1) * block_size < total or blocks == 0


def test_a_hit_ends_at_the_first_gap():
    spec = FullAttentionSpec(LAYER, 16, "float32")
    assert spec.cached_prefix([True, True, False, True]) == 2


def test_the_engine_need_not_look_behind_a_gap():
    assert FullAttentionSpec.needs_whole_prefix


@pytest.mark.parametrize(("heads", "dim", "what"), [(0, 8, "num_kv_heads"), (2, 0, "head_dim")])
def test_heads_that_are_none_are_refused(heads, dim, what):
    with pytest.raises(SettingsError, match=f"{what} of a must be at least 1, got 0"):
        FullAttentionSpec(KVLayer("a", "full_attention", heads, dim), 16, "float32")


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(SettingsError, match=r"8 KV heads of layers\.0\.attn .* 3 devices"):
        FullAttentionSpec(LAYER, 16, "float32", 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_size": 0}, "block_size of layers"),
        ({"tp_size": 0}, "tp_size of layers"),
        ({"kv_dtype": "float12"}, "unknown KV dtype 'float12'"),
    ],
)
def test_wrong_sizes_are_named(wrong, message):
    right = {"block_size": 16, "kv_dtype": "float32", "tp_size": 1}
    with pytest.raises(SettingsError, match=message):
        FullAttentionSpec(LAYER, **(right | wrong))
