"""The attention layer hands its part of the cache and the step to the backend of its group."""

import pytest
import torch
from model_parts import CONTEXT, dense_attention

from quire.interfaces.model import ForwardBatch
from quire.layers import Attention

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
