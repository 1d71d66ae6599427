"""Config of Gemma 3: windows by layer, defaults for missing values, and refused values."""

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_parameters import RopeParameters
from quire_models.gemma3_config import describe_gemma3, read_gemma3

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
}


def kinds(**config: Any) -> str:
    layers = describe_gemma3({**SIZES, **config}).kv_layers
    return "".join("w" if layer.spec == "sliding_window" else "f" for layer in layers)


def test_the_description_says_which_layers_have_a_window():
    description = describe_gemma3({**SIZES, "sliding_window": 512, "sliding_window_pattern": 3})
    assert [(layer.spec, layer.params) for layer in description.kv_layers[:3]] == [
        ("sliding_window", (("window", 512),)),
        ("sliding_window", (("window", 512),)),
        ("full_attention", ()),
    ]


def test_a_pattern_of_n_has_every_nth_layer_whole():
    assert kinds(sliding_window_pattern=3) == "wwfwwfw"
    assert kinds(sliding_window_pattern=1) == "fffffff"
    assert kinds() == "wwwwwfw"


def test_a_list_of_layer_types_is_followed_and_goes_before_the_pattern():
    types = ["full_attention", *["sliding_attention"] * 5, "full_attention"]
    assert kinds(layer_types=types, sliding_window_pattern=2) == "fwwwwwf"


def test_without_a_layer_that_has_one_there_is_no_window():
    config = {**SIZES, "layer_types": ["full_attention"] * 7, "sliding_window": None}
    assert all(layer.spec == "full_attention" for layer in describe_gemma3(config).kv_layers)


def test_a_silent_config_is_that_of_transformers():
    description = describe_gemma3(SIZES)
    first = description.kv_layers[0]
    assert (first.head_dim, first.num_kv_heads, first.params) == (256, 4, (("window", 4096),))
    assert description.max_model_len == 131_072
    decoder = read_gemma3(SIZES)
    assert decoder.ropes == (RopeParameters(1e6), RopeParameters(1e4))
    assert decoder.tie_word_embeddings
    assert decoder.attention_scale == 1 / 16


def test_a_stretched_context_stretches_the_long_range_alone():
    scaling = {"rope_type": "linear", "factor": 8.0}
    decoder = read_gemma3({**SIZES, "rope_scaling": scaling})
    assert decoder.ropes == (RopeParameters(1e6, "linear", 8.0), RopeParameters(1e4))


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_a_rotary_embedding_may_be_given_for_one_kind_of_layers(kind):
    entry = {kind: {"rope_type": "default", "rope_theta": 555.0}}
    ropes = read_gemma3({**SIZES, "rope_parameters": entry}).ropes
    assert sorted(rope.theta for rope in ropes if rope.theta != 555.0) == [
        1e4 if kind == "full_attention" else 1e6
    ]


def test_each_layer_rotates_as_its_kind_does():
    decoder = read_gemma3({**SIZES, "sliding_window_pattern": 3})
    assert [decoder.rope_index(layer) for layer in range(7)] == [1, 1, 0, 1, 1, 0, 1]


def test_the_scale_of_queries_is_that_of_the_config_and_not_of_the_heads():
    assert read_gemma3({**SIZES, "query_pre_attn_scalar": 64}).attention_scale == 1 / 8


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"layer_types": ["chunked_attention"] * 7}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries .* \\(7\\)"),
        ({"layer_types": ["full_attention"] * 8}, "layer_types has 8 entries .* \\(7\\)"),
        ({"sliding_window": None}, "no sliding_window"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window_pattern": "6"}, "sliding_window_pattern"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters.full_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_local_base_freq": 0}, "rope_local_base_freq"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        describe_gemma3({**SIZES, **config})
    assert "Gemma3ForCausalLM" in str(caught.value)
