"""Config of SmolLM 3: which layers have a rotary embedding, and which a window."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.family_table import read_decoder_config

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
}


def attentions(**config: Any) -> list[AttentionConfig]:
    layers = read_decoder_config("SmolLM3ForCausalLM", {**SIZES, **config}).layers
    return [layer.attention for layer in layers]


def rotated(**config: Any) -> list[bool]:
    return [attention.rope is not None for attention in attentions(**config)]


def test_the_last_layer_of_four_has_no_rotary_embedding():
    assert rotated() == [True, True, True, False, True]
    assert rotated(no_rope_layer_interval=2) == [True, False, True, False, True]


def test_a_list_says_which_layers_have_one():
    assert rotated(no_rope_layers=[0, 1, 1, 0, 0]) == [False, True, True, False, False]


@pytest.mark.parametrize("listed", [[1] * 4, [1] * 6, [1, 1, 2, 1, 1], []], ids=str)
def test_a_list_has_a_0_or_1_for_each_layer(listed):
    with pytest.raises(UnsupportedModelError, match=r"no_rope_layers .* each of the 5 layers"):
        attentions(no_rope_layers=listed)


def test_layers_without_a_rotary_embedding_have_the_window():
    config = {"use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [0, 1, 1, 0, 1]}
    assert [each.window for each in attentions(**config)] == [9, None, None, 9, None]
    config["use_sliding_window"] = False
    assert [each.window for each in attentions(**config)] == [None] * 5
