"""Config of Llama and of families that differ from it by few options."""

from typing import Any

import pytest

from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import read_decoder_config

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 77,
}


def read(architecture: str, **config: Any) -> DecoderConfig:
    return read_decoder_config(architecture, {**SIZES, **config})


def biases(architecture: str, **config: Any) -> tuple[bool, bool, bool]:
    """Return whether q, k and v, the output projection and the MLP have biases."""
    layer = read(architecture, **config).layers[0]
    return layer.attention.qkv_bias, layer.attention.output_bias, layer.mlp.has_bias


def test_a_silent_config_is_that_of_transformers():
    decoder = read("LlamaForCausalLM")
    assert decoder.norm.eps == 1e-6
    assert (decoder.placement, decoder.tie_word_embeddings) == ("pre", False)
    assert biases("LlamaForCausalLM") == (False, False, False)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
def test_the_biases_of_llama_are_asked_for_apart(attention, mlp):
    config = {"attention_bias": attention, "mlp_bias": mlp}
    assert biases("LlamaForCausalLM", **config) == (attention, attention, mlp)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
def test_seed_oss_has_a_flag_for_each_bias(attention, output, mlp):
    config = {"attention_bias": attention, "attention_out_bias": output, "mlp_bias": mlp}
    assert biases("SeedOssForCausalLM", **config) == (attention, output, mlp)


def test_seed_oss_has_biases_of_queries_keys_and_values_unless_it_says_so():
    assert biases("SeedOssForCausalLM") == (True, False, False)
    assert read("SeedOssForCausalLM").layers[0].attention.head_dim == 128


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_internlm3_has_a_flag_for_the_inputs_of_attention_and_one_for_all_else(inputs, others):
    config = {"qkv_bias": inputs, "bias": others}
    assert biases("InternLM3ForCausalLM", **config) == (inputs, others, others)


def test_cwm_has_full_attention_in_the_first_of_four_layers():
    attentions = [layer.attention for layer in read("CwmForCausalLM", sliding_window=9).layers]
    assert [attention.window for attention in attentions] == [None, 9, 9, 9, None]
    assert read("CwmForCausalLM").layers[1].attention.window == 8192
