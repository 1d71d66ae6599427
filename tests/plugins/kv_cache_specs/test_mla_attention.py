"""Latent attention stores one row per token, whole on every device."""

import pytest

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.mla_attention import MLAAttentionSpec

LAYER = KVLayer("layers.0.attn", "mla_attention", 1, 576, (("latent_dim", 512),))


class TestMLAAttention(KVCacheSpecContract):
    spec_class = MLAAttentionSpec
    layer = LAYER
    tp_sizes = (1, 2, 3, 8, 128)


def test_a_page_is_a_latent_and_a_rotated_key_for_each_token():
    assert MLAAttentionSpec(LAYER, 16, "bfloat16").page_bytes == 16 * (512 + 64) * 2
    assert MLAAttentionSpec(LAYER, 64, "float32").page_bytes == 64 * (512 + 64) * 4


def test_every_device_keeps_the_whole_row():
    assert MLAAttentionSpec(LAYER, 16, "bfloat16", 8).page_bytes == 16 * 576 * 2


def test_the_rest_of_a_row_is_the_rotated_key():
    assert MLAAttentionSpec(LAYER, 16, "bfloat16").rope_dim == 64


def test_its_layers_do_not_share_a_group_with_others():
    params = (("latent_dim", 512),)
    full = FullAttentionSpec(KVLayer("b", "full_attention", 1, 576, params), 16, "bfloat16")
    assert MLAAttentionSpec(LAYER, 16, "bfloat16").key != full.key


@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "params", "message"),
    [
        (1, 576, (), r"mla_attention of layers\.0\.attn needs the parameter 'latent_dim'"),
        (1, 576, (("latent_dim", 0),), r"latent_dim of layers\.0\.attn must be at least 1, got 0"),
        (1, 512, (("latent_dim", 512),), r"more than latent_dim=512, got 512"),
        (2, 576, (("latent_dim", 512),), r"must give num_kv_heads=1, got 2"),
    ],
)
def test_what_is_no_row_is_refused(num_kv_heads, head_dim, params, message):
    layer = KVLayer("layers.0.attn", "mla_attention", num_kv_heads, head_dim, params)
    with pytest.raises(SettingsError, match=message):
        MLAAttentionSpec(layer, 16, "float32")
