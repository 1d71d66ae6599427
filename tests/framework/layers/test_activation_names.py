"""Names of activations."""

import pytest
from transformers.activations import ACT2FN

from quire.errors import UnsupportedModelError
from quire.layers.activation_names import ACTIVATIONS, activation_name


def test_names_are_those_of_hugging_face():
    assert set(ACTIVATIONS) - {"gelu_tanh"} <= set(ACT2FN)


def test_several_names_mean_one_function():
    assert {activation_name(name) for name in ("gelu_new", "gelu_pytorch_tanh")} == {"gelu_tanh"}
    assert activation_name("swish") == "silu"


def test_an_activation_that_quire_does_not_have_is_refused_with_those_it_has():
    message = "activation 'mish' is not supported; quire supports gelu, gelu_accurate"
    with pytest.raises(UnsupportedModelError, match=message):
        activation_name("mish")
