"""Config of Mistral and Ministral: a window in all layers, in some, or in none."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire_models.family_table import read_decoder_config

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 77,
}


def windows(architecture: str, **config: Any) -> list[int | None]:
    layers = read_decoder_config(architecture, {**SIZES, **config}).layers
    return [layer.attention.window for layer in layers]


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "MinistralForCausalLM"])
def test_a_window_is_that_of_all_layers(architecture):
    assert windows(architecture, sliding_window=10) == [10] * 3
    assert windows(architecture, sliding_window=None) == [None] * 3
    assert windows(architecture) == [4096] * 3


def test_ministral_may_list_the_layers_that_have_a_window():
    kinds = [FULL, SLIDING, FULL]
    config = {"sliding_window": 10, "layer_types": kinds}
    assert windows("MinistralForCausalLM", **config) == [None, 10, None]


def test_layers_with_a_window_of_no_size_are_a_contradiction():
    with pytest.raises(UnsupportedModelError, match=f"layer_types has {SLIDING}, but sliding_wind"):
        windows("MinistralForCausalLM", sliding_window=None, layer_types=[FULL, SLIDING, FULL])
