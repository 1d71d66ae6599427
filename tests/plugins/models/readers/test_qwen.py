"""Config of Qwen 2 and 3: biases, head size, and windows of the later layers."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import describe, read_decoder_config

QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"
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
BOTH = pytest.mark.parametrize("architecture", [QWEN2, QWEN3])


def read(architecture: str, **config: Any) -> DecoderConfig:
    return read_decoder_config(architecture, {**SIZES, **config})


def windows(architecture: str, **config: Any) -> list[int | None]:
    return [layer.attention.window for layer in read(architecture, **config).layers]


def test_only_the_inputs_of_qwen2s_attention_have_biases():
    attention = read(QWEN2).layers[0].attention
    assert (attention.qkv_bias, attention.output_bias, attention.qk_norm) == (True, False, None)


@pytest.mark.parametrize("has_biases", [False, True])
def test_qwen3_has_a_norm_of_heads_and_biases_if_it_says_so(has_biases):
    attention = read(QWEN3, attention_bias=has_biases).layers[0].attention
    assert (attention.qkv_bias, attention.output_bias) == (has_biases, has_biases)
    assert attention.qk_norm is not None
    assert attention.qk_norm.over == "head"


def test_qwen3_has_heads_of_128_unless_it_says_so():
    assert read(QWEN3).layers[0].attention.head_dim == 128
    assert read(QWEN3, hidden_size=33).layers[0].attention.head_dim == 128
    assert read(QWEN3, head_dim=16).layers[0].attention.head_dim == 16
    assert read(QWEN2).layers[0].attention.head_dim == 8


@BOTH
def test_the_first_layers_have_no_window(architecture):
    config = {"use_sliding_window": True, "sliding_window": 10}
    assert windows(architecture, **config, max_window_layers=1) == [None, 10, 10]
    assert windows(architecture, **config, max_window_layers=3) == [None] * 3
    assert windows(architecture, **config) == [None] * 3, "28 layers, as in transformers"
    assert windows(architecture, use_sliding_window=True, max_window_layers=2) == [
        None, None, 4096,
    ]  # fmt: skip


@BOTH
def test_layer_types_go_before_the_number_of_layers_without_a_window(architecture):
    config = {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1}
    assert windows(architecture, **config, layer_types=[SLIDING, FULL, FULL]) == [10, None, None]


@BOTH
def test_a_window_that_is_switched_off_does_not_matter(architecture):
    config = {"use_sliding_window": False, "sliding_window": 64, "layer_types": [FULL] * 3}
    assert windows(architecture, **config, max_window_layers=1) == [None] * 3
    description = describe({"architectures": [architecture], **SIZES, **config})
    assert description.sliding_window is None


@BOTH
@pytest.mark.parametrize("config", [{}, {"use_sliding_window": False}], ids=str)
def test_windows_of_layers_that_are_switched_off_are_a_contradiction(architecture, config):
    with pytest.raises(UnsupportedModelError, match=f"{architecture}: layer_types has {SLIDING}"):
        read(architecture, **config, sliding_window=64, layer_types=[FULL, FULL, SLIDING])
