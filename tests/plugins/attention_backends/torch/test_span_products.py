"""Folding moves the heads of a group into rows, unfolding undoes it, and the products agree."""

import pytest
import torch
from kv_pages import shape_of

from quire.interfaces.attention import AttentionLayerParams
from quire_attention_backends.torch.span_products import (
    explicit,
    explicit_float32,
    fold,
    folded_sinks,
    fused,
    unfold,
)

SHAPE = shape_of("float32", num_heads=6, num_kv_heads=2, head_dim=8)
SIZES = [(1, 1), (4, 1), (1, 5), (3, 4)]


@pytest.mark.parametrize(("num_spans", "num_queries"), SIZES)
def test_unfolding_undoes_folding(num_spans, num_queries):
    q = torch.randn(num_spans * num_queries, 6, 8)
    folded = fold(q, num_spans, num_queries, SHAPE)
    assert folded.shape == (num_spans * 2, num_queries * 3, 8)
    assert torch.equal(unfold(folded, num_spans, num_queries, SHAPE), q)


@pytest.mark.parametrize(("num_spans", "num_queries"), SIZES)
def test_a_sink_is_in_the_rows_of_its_head(num_spans, num_queries):
    sinks = torch.arange(6.0)
    heads = sinks.view(1, 6, 1).expand(num_spans * num_queries, 6, 8)
    expected = fold(heads, num_spans, num_queries, SHAPE)[..., :1]
    assert torch.equal(folded_sinks(sinks, num_spans, num_queries, SHAPE), expected)


def scene():
    q, k, v = torch.randn(4, 6, 8), torch.randn(4, 9, 8), torch.randn(4, 9, 8)
    mask = torch.zeros(2, 2, 6, 9).masked_fill_(torch.rand(2, 2, 6, 9) < 0.3, -torch.inf)
    return q, k, v, mask


def test_the_three_implementations_agree():
    q, k, v, mask = scene()
    layer = AttentionLayerParams(0.3)
    expected = explicit(q, k, v, mask.flatten(0, 1), 0.3)
    torch.testing.assert_close(fused(q, k, v, mask, 0.3), expected)
    torch.testing.assert_close(explicit_float32(q, k, v, mask, layer, None, None), expected)


def test_a_sink_takes_part_in_the_softmax():
    q, k, v, mask = scene()
    layer = AttentionLayerParams(0.3, logit_soft_cap=3.0)
    far = torch.full((4, 6, 1), -1e4)
    without = explicit_float32(q, k, v, mask, layer, None, None)
    torch.testing.assert_close(explicit_float32(q, k, v, mask, layer, far, None), without)
    assert not explicit_float32(q, k, v, mask, layer, -far, None).any()
