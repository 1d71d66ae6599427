"""Config of GPT-2 and GPT-BigCode under its early names."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import read_decoder_config

GPT2, BIG_CODE, GPTJ = "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM"
SIZES: dict[str, Any] = {
    "vocab_size": 100, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 77,
}  # fmt: skip


def read(architecture: str, **config: Any) -> DecoderConfig:
    return read_decoder_config(architecture, {**SIZES, **config})


@pytest.mark.parametrize("architecture", [GPT2, BIG_CODE])
def test_a_silent_config_is_that_of_transformers(architecture):
    decoder = read(architecture)
    assert (decoder.hidden_size, decoder.max_positions, len(decoder.layers)) == (32, 77, 3)
    assert decoder.tie_word_embeddings
    assert decoder.layers[0].mlp.width == 4 * 32
    assert {layer.attention.scale for layer in decoder.layers} == {8**-0.5}
    assert {layer.attention.rope for layer in decoder.layers} == {None}


def test_scores_may_be_left_unscaled_or_divided_by_the_number_of_the_layer():
    plain = read(GPT2, scale_attn_weights=False)
    assert {layer.attention.scale for layer in plain.layers} == {1.0}
    divided = read(GPT2, scale_attn_by_inverse_layer_idx=True)
    scales = [layer.attention.scale * 8**0.5 for layer in divided.layers]
    assert scales == pytest.approx([1, 1 / 2, 1 / 3])


@pytest.mark.parametrize("architecture", [GPT2, BIG_CODE])
def test_a_decoder_with_an_encoder_is_refused(architecture):
    with pytest.raises(UnsupportedModelError, match="add_cross_attention is not supported"):
        read(architecture, add_cross_attention=True)


def test_one_key_head_of_gpt_bigcode_serves_all_queries_unless_it_says_otherwise():
    assert read(BIG_CODE).layers[0].attention.num_kv_heads == 1
    assert read(BIG_CODE, multi_query=False).layers[0].attention.num_kv_heads == 4


def test_gptj_rotates_neighbouring_elements_of_a_part_of_a_head():
    rope = read(GPTJ, rotary_dim=6).layers[0].attention.rope
    assert rope is not None
    assert (rope.rotary_dim, rope.is_interleaved) == (6, True)


def test_a_missing_size_is_named_as_the_file_names_it():
    with pytest.raises(UnsupportedModelError, match=r"config\.json has no n_embd"):
        read(GPT2, n_embd=None)
