"""Cross-attention holds the encoder's tokens, from the first step to the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.cross_attention import CrossAttentionSpec


def layer(encoder_len=50):
    return KVLayer("layers.0.cross", "cross_attention", 4, 32, (("encoder_len", encoder_len),))


class TestCrossAttention(KVCacheSpecContract):
    spec_class = CrossAttentionSpec
    other_layers = (layer(20),)
    layer = layer()
    has_prefix_hits = False


@given(st.integers(1, 2000), st.sampled_from([1, 16, 64]), st.integers(0, 5000))
def test_the_table_has_the_encoders_length_and_never_grows(encoder_len, block_size, num_tokens):
    spec = CrossAttentionSpec(layer(encoder_len), block_size, "float16")
    blocks = spec.blocks_needed(num_tokens, num_lookahead_tokens=7)
    assert (blocks - 1) * block_size < encoder_len <= blocks * block_size
    assert spec.max_blocks_held(num_tokens, 1) == blocks
    assert not spec.freeable_blocks(num_tokens)


def test_equal_prompts_do_not_hit():
    spec = CrossAttentionSpec(layer(), 16, "float16")
    assert spec.cached_prefix([True] * 5) == 0
    assert not spec.cacheable_blocks(range(9), 150)


def test_a_layer_without_an_encoder_is_refused():
    wrong = KVLayer("layers.0.cross", "cross_attention", 4, 32)
    with pytest.raises(SettingsError, match="needs the parameter 'encoder_len'"):
        CrossAttentionSpec(wrong, 16, "float32")
