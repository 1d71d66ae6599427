"""The reference attention of the kit agrees with torch and with the layers."""

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from quire.interfaces.attention import AttentionLayerParams
from quire.layers.attention.rotary import Rotation, rotate
from quire.testing.attention.attention_truth import (
    RotaryReference,
    first_seen,
    kv_round_trip,
    reference_attention,
)

Q = torch.randn(5, 6, 16, generator=torch.Generator().manual_seed(0)).double()
K, V = torch.randn(2, 9, 2, 16, generator=torch.Generator().manual_seed(1)).double()


def by_torch(mask, sinks=None):
    q, k, v = (x.transpose(0, 1) for x in (Q, K, V))
    if sinks is not None:  # one more key, whose score is the sink and whose value is zero
        q = torch.cat((q, sinks.double().view(-1, 1, 1).expand(-1, len(Q), 1)), -1)
        k = torch.nn.functional.pad(k, (0, 1, 0, 1))
        k[:, -1, -1] = 1 / 0.3
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
        mask = torch.nn.functional.pad(mask, (0, 1), value=True)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    return out.transpose(0, 1)


CAUSAL = torch.ones(5, 9, dtype=torch.bool).tril(4)


def test_attention_is_torchs():
    output = reference_attention(Q, K, V, AttentionLayerParams(0.3))
    torch.testing.assert_close(output, by_torch(CAUSAL))


def test_windows_and_chunks_are_masks():
    queries, keys = torch.arange(4, 9).unsqueeze(1), torch.arange(9)
    window = AttentionLayerParams(0.3, sliding_window=3)
    chunk = AttentionLayerParams(0.3, attention_chunk=4)
    masks = (CAUSAL & (keys > queries - 3), CAUSAL & (keys >= queries // 4 * 4))
    for layer, mask in zip((window, chunk), masks, strict=True):
        torch.testing.assert_close(reference_attention(Q, K, V, layer), by_torch(mask))
        assert [first_seen(int(q), layer) for q in queries] == mask.int().argmax(1).tolist()


def test_a_sink_is_a_key_without_a_value():
    sinks = torch.linspace(-1, 3, 6)
    output = reference_attention(Q, K, V, AttentionLayerParams(0.3, sinks=sinks))
    torch.testing.assert_close(output, by_torch(CAUSAL, sinks))


def test_linear_biases_are_added_to_the_scores():
    slopes = torch.linspace(0.5, 0.02, 6)
    distances = torch.arange(9) - torch.arange(4, 9).unsqueeze(1)
    biases = slopes.view(-1, 1, 1).double() * distances
    mask = biases.masked_fill(~CAUSAL, -torch.inf)
    output = reference_attention(Q, K, V, AttentionLayerParams(0.3, alibi_slopes=slopes))
    torch.testing.assert_close(output, by_torch(mask))


def test_a_small_cap_makes_all_weights_equal():
    output = reference_attention(Q, K, V, AttentionLayerParams(0.3, logit_soft_cap=1e-9))
    means = torch.stack([V[: row + 5].mean(0) for row in range(5)]).repeat_interleave(3, 1)
    torch.testing.assert_close(output, means)


@pytest.mark.parametrize("has_norm", [False, True])
def test_heads_are_rotated_as_by_the_layers(has_norm):
    angles = torch.rand(12, 8).double()
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
    weight = torch.rand(8, 16).double()
    rotary_reference = RotaryReference(table, weight if has_norm else None, 1e-3)
    heads = K
    if has_norm:
        heads = rms_norm(K, (16,), None, 1e-3) * weight[6:]
    expected = rotate(heads, Rotation(table, torch.arange(9)))
    torch.testing.assert_close(rotary_reference.of(K, 6), expected)


def test_a_plain_cache_rounds():
    x = K.float()
    assert torch.equal(kv_round_trip(x, "bfloat16", 3.0), x.bfloat16().double())
    assert torch.equal(kv_round_trip(x, "float32", 3.0), x.double())


@pytest.mark.parametrize(("kv_dtype", "limit"), [("float8_e4m3fn", 2**-4), ("int8", 2**-7)])
def test_fewer_bits_are_a_little_off(kv_dtype, limit):
    off = (kv_round_trip(K, kv_dtype, 0.5) - K).abs()
    assert 0 < off.max() <= limit * K.abs().max()


def test_float8_is_clamped_and_int8_scales_with_its_row():
    x = torch.tensor([[[1000.0, -3.0]]])
    assert kv_round_trip(x, "float8_e4m3fn", 2.0).tolist() == [[[896.0, -3.0]]]
    row = kv_round_trip(x, "int8", 2.0)
    assert row[0, 0, 0].item() == pytest.approx(1000, rel=1e-6)
    assert row[0, 0, 1] == 0
    assert not kv_round_trip(torch.zeros(1, 1, 4), "int8", 1.0).any()
