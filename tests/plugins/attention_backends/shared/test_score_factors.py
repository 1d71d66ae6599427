"""Factors turn scores into exponents to base 2, with and without a soft cap."""

import math

import pytest

from quire.interfaces.attention import AttentionLayerParams
from quire_attention_backends.shared.score_factors import kv_units, score_factors


@pytest.mark.parametrize("score", [-70.0, 0.25, 900.0])
def test_exponents_are_those_of_the_softmax(score):
    factor, cap_factor = score_factors(AttentionLayerParams(0.1), 4.0)
    assert cap_factor == 0.0
    assert 2 ** (factor * score) == pytest.approx(math.exp(0.1 * 4.0 * score))


@pytest.mark.parametrize("score", [-70.0, 0.25, 900.0])
def test_a_cap_bounds_the_scaled_score(score):
    factor, cap_factor = score_factors(AttentionLayerParams(0.1, logit_soft_cap=30.0), 4.0)
    expected = math.exp(30.0 * math.tanh(0.1 * 4.0 * score / 30.0))
    assert 2 ** (cap_factor * math.tanh(factor * score)) == pytest.approx(expected)


def test_only_float8_has_units_other_than_one():
    layer = AttentionLayerParams(1.0, k_scale=0.5, v_scale=0.25)
    assert kv_units("float8", layer) == (0.5, 0.25)
    assert kv_units("float8", layer, 256.0) == (128.0, 64.0)
    assert kv_units("int8", layer, 256.0) == kv_units("plain", layer, 256.0) == (1.0, 1.0)
