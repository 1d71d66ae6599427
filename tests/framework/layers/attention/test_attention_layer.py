"""The attention layer hands its part of the cache and the step to the backend of its group."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from rotating_attention import RotatingAttention

from quire.errors import CheckpointCorruptError, RequestFailedError
from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Attention,
    QKLayerNorm,
    QKNorm,
    QKProjectionNorm,
    RotaryEmbedding,
    SingleDevice,
    alibi_slopes,
    rotate,
)
from quire.layers.attention.rope_parameters import RopeParameters
from quire.testing.model.dense_attention import DenseAttention, dense_attention

Q, K, V = (torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))


def test_it_attends_with_the_metadata_of_its_group():
    layer = Attention("self_attn.attention", 2, 2, 4, 0.5, CONTEXT)
    cache = torch.zeros(2, 8, 2, 4)
    layer.bind(dense_attention(layer), cache, 1)
    out = layer(Q, K, V, ForwardBatch(attention=["of another group", 0]))
    assert out.shape == (3, 8)
    torch.testing.assert_close(out[0].view(2, 4), V[0])  # the first token sees itself only
    assert torch.equal(cache[0, :3], K)
    assert torch.equal(cache[1, :3], V)


def test_before_bind_it_says_so():
    layer = Attention("self_attn.attention", 2, 2, 4, 0.5, CONTEXT)
    with pytest.raises(RuntimeError, match=r"self_attn\.attention"):
        layer(Q, K, V, ForwardBatch(attention=[0]))


def test_scale_and_window_go_to_the_backend():
    layer = Attention("a", 2, 1, 4, 0.25, CONTEXT, sliding_window=7, logit_soft_cap=30.0)
    params = layer.params
    assert (params.scale, params.sliding_window, params.logit_soft_cap) == (0.25, 7, 30.0)


@pytest.mark.parametrize("norm_class", [None, QKNorm, QKLayerNorm, QKProjectionNorm])
def test_heads_as_projected_are_normed_and_rotated_here_or_by_the_backend(norm_class):
    layer = Attention("self_attn.attention", 4, 2, 8, 0.5, CONTEXT)
    norm = None
    if norm_class is not None:
        norm = norm_class(4, 2, 8, 1e-6, CONTEXT, vectors="shared")
        norm.load_weight("weight", torch.arange(1.0, 9.0), "q_norm")
        norm.load_weight("weight", torch.arange(9.0, 1.0, -1.0), "k_norm")
        norm.finish_loading()
    rotation = RotaryEmbedding(8, 50, RopeParameters(100.0), CONTEXT)(torch.arange(3))
    batch = ForwardBatch(attention=[0])
    results = []
    for backend in (dense_attention(layer), RotatingAttention(dense_attention(layer).shape)):
        cache = torch.zeros(2, 8, 2, 8)
        layer.bind(backend, cache, 0)
        results.append((layer.forward_rotary(projected(), rotation, norm, batch), cache))
    assert results[0][0].shape == (3, 32)
    torch.testing.assert_close(results[0], results[1])
    heads = projected().view(3, 8, 8)
    if norm is not None:
        normed = norm(heads[:, :6].clone())
        expected = rotate(normed, rotation)[:, 4:]
        torch.testing.assert_close(results[0][1][0, :3], expected)
    turned = results[0][1][0, 2]  # the last token's keys
    assert not torch.allclose(turned, heads[2, 4:6])
    torch.testing.assert_close(results[0][1][1, :3], heads[:, 6:])  # values stay as they are


def projected() -> torch.Tensor:
    """q, k and v side by side, `[T, (H + 2K) * D]`."""
    return torch.randn(3, 64, generator=torch.Generator().manual_seed(5))


class SecondOfTwo(SingleDevice):
    rank, size = 1, 2


def test_sinks_are_float32_and_those_of_this_devices_heads():
    context = replace(CONTEXT, tp=SecondOfTwo(), dtype=torch.bfloat16)
    layer = Attention("a", 4, 2, 8, 0.5, context, has_sinks=True)
    assert layer.checkpoint_shape("sinks", "attn") == (4,)
    layer.load_weight("sinks", torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16), "attn")
    layer.finish_loading()
    assert layer.params.sinks is not None
    assert layer.params.sinks.dtype is torch.float32
    assert layer.params.sinks.tolist() == [3.0, 4.0]


def test_slopes_are_float32_and_those_of_this_devices_heads():
    context = replace(CONTEXT, tp=SecondOfTwo(), dtype=torch.bfloat16)
    layer = Attention("a", 4, 2, 8, 0.5, context, alibi_slopes=alibi_slopes(4))
    layer.finish_loading()
    assert layer.has_alibi
    assert not list(layer.parameters())
    assert layer.params.alibi_slopes is not None
    assert layer.params.alibi_slopes.dtype is torch.float32
    assert layer.params.alibi_slopes.tolist() == [2**-6, 2**-8]
    plain = Attention("a", 4, 2, 8, 0.5, context)
    assert (plain.has_alibi, plain.params.alibi_slopes) == (False, None)


def test_a_layer_without_sinks_has_no_parameter_for_them():
    layer = Attention("a", 4, 2, 8, 0.5, CONTEXT)
    assert not list(layer.parameters())
    assert layer.params.sinks is None


def test_scales_are_set_when_loading_is_finished():
    layer = Attention("a", 4, 2, 8, 0.5, CONTEXT, sliding_window=3)
    layer.load_weight("v_scale", torch.tensor([0.25]), "")
    layer.finish_loading()
    assert (layer.params.k_scale, layer.params.v_scale) == (1.0, 0.25)
    assert layer.params.sliding_window == 3


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_nothing_can_be_divided_by_is_refused(scale):
    layer = Attention("model.layers.3.self_attn.attn", 4, 2, 8, 0.5, CONTEXT)
    with pytest.raises(CheckpointCorruptError, match=r"k_scale of .*layers\.3.* is .*positive"):
        layer.load_weight("k_scale", torch.tensor(scale), "")


def test_a_layer_at_the_root_of_a_model_has_scales_too():
    names = Attention("attn", 4, 2, 8, 0.5, CONTEXT).optional_weights("attn")
    assert names["attn.k_scale"] == names["k_scale"] == names["k_proj.k_scale"] == "k_scale"


WRONG = {
    "a row too few": (lambda out: out[:-1], r"a float32 tensor of shape \[2, 2, 4\] on cpu"),
    "one row for all": (lambda out: out[:1], r"shape \[1, 2, 4\]"),
    "a row too many": (lambda out: out.repeat(2, 1, 1)[:4], r"shape \[4, 2, 4\]"),
    "heads and rows swapped": (lambda out: out.transpose(0, 1), r"shape \[2, 3, 4\]"),
    "flat": (lambda out: out.flatten(1), r"shape \[3, 8\]"),
    "another type": (lambda out: out.double(), "a float64 tensor"),
    "another device": (lambda out: out.to("meta"), "on meta"),
    "nothing": (lambda out: None, "None"),
}


@pytest.mark.parametrize("is_rotary", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_backend_that_returns_something_else_is_blamed_by_name(wrong, is_rotary):
    change, returned = WRONG[wrong]

    class Wrong(RotatingAttention):
        def forward(self, *args):
            return change(super().forward(*args))

        def forward_rotary(self, qkv, *args):
            return change(qkv.new_zeros(3, 2, 4))

    layer = Attention("model.layers.1.attn", 2, 2, 4, 0.5, CONTEXT)
    backend = Wrong(dense_attention(layer).shape)
    layer.bind(backend, torch.zeros(2, 8, 2, 4), 0, "attention backend 'x' of plugin y")
    batch = ForwardBatch(attention=[0])
    wanted = r"it must return a float32 tensor of shape \[3, 2, 4\] on cpu"
    source = r"attention backend 'x' of plugin y of layer model\.layers\.1\.attn returned"
    rotation = RotaryEmbedding(4, 50, RopeParameters(100.0), CONTEXT)(torch.arange(3))
    inputs = (torch.zeros(3, 24), rotation, None) if is_rotary else (Q, K, V)
    attend = layer.forward_rotary if is_rotary else layer
    with pytest.raises(RequestFailedError, match=f"^{source} .*{returned}.*; {wanted}$"):
        attend(*inputs, batch)


def test_a_backend_without_another_name_is_called_by_its_class():
    layer = Attention("a", 2, 2, 4, 0.5, CONTEXT)
    wrong = dense_attention(layer)
    wrong.forward = lambda *args: None
    layer.bind(wrong, torch.zeros(2, 8, 2, 4), 0)
    with pytest.raises(RequestFailedError, match=r"^DenseAttention of layer a returned None"):
        layer(Q, K, V, ForwardBatch(attention=[0]))


def test_an_unbound_layer_has_dropped_all():
    layer = Attention("a", 2, 2, 4, 0.5, CONTEXT)
    layer.bind(dense_attention(layer), torch.zeros(2, 8, 2, 4), 3)
    layer.unbind()
    assert layer.backend_index == -1
    with pytest.raises(RuntimeError, match="runs before bind"):
        layer(Q, K, V, ForwardBatch(attention=[0]))


class Fuses(DenseAttention):
    """Rotates itself, and returns its metadata."""

    fuses_rotary = True

    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        return torch.full((3, 2, 4), float(metadata))


def test_a_backend_that_rotates_has_the_metadata_of_its_group():
    layer = Attention("a", 2, 2, 4, 0.5, CONTEXT)
    layer.bind(Fuses(dense_attention(layer).shape), torch.zeros(2, 8, 2, 4), 1)
    rotation = RotaryEmbedding(4, 50, RopeParameters(100.0), CONTEXT)(torch.arange(3))
    batch = ForwardBatch(attention=[5, 7])
    assert torch.equal(
        layer.forward_rotary(torch.zeros(3, 24), rotation, None, batch), torch.full((3, 8), 7.0)
    )
