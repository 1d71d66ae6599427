"""A key that a config.json lacks has the value that transformers takes."""

import json
from typing import Any

import pytest
from family_cases import CASES
from family_checkpoints import MISSING, FamilyCase

from quire.errors import UnsupportedModelError
from quire.testing.model import TINY_SIZES
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import FAMILIES, read_decoder_config
from quire_models.readers.missing_values import MISSING_VALUES, ROPES

# The last two have tests of their own beside those of all families.
SHAPES = {
    **{family: next(iter(shapes.values())) for family, shapes in CASES.items()},
    "LlamaForCausalLM": FamilyCase("llama", {}),
    "Gemma3ForCausalLM": FamilyCase(
        "gemma3_text", {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 7}
    ),
}


def read(family: str, config: dict[str, Any]) -> DecoderConfig | str:
    """Return the options, or the refusal."""
    try:
        return read_decoder_config(family, config)
    except UnsupportedModelError as error:
        return str(error)


def completed(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config as transformers completes it."""
    from transformers import CONFIG_MAPPING

    found = CONFIG_MAPPING[SHAPES[family].model_type].from_dict(dict(config))
    return {**json.loads(found.to_json_string(use_diff=False)), "architectures": [family]}


def shape_of(family: str) -> dict[str, Any]:
    options = SHAPES[family].options
    given = {key: value for key, value in {**TINY_SIZES, **options}.items() if value is not MISSING}
    return {**given, "model_type": SHAPES[family].model_type, "architectures": [family]}


@pytest.mark.parametrize("family", SHAPES)
def test_a_config_means_the_same_before_and_after_transformers_completes_it(family):
    config = shape_of(family)
    assert read(family, config) == read(family, completed(family, config))


@pytest.mark.parametrize("family", SHAPES)
def test_a_missing_key_has_the_value_of_transformers(family):
    whole = completed(family, shape_of(family))
    for key in sorted({*MISSING_VALUES.get(family, ()), "rope_parameters"} & whole.keys()):
        silent = {name: value for name, value in whole.items() if name != key}
        expected = completed(family, silent)
        if key == "num_key_value_heads":
            assert MISSING_VALUES[family][key] == expected[key]
            continue
        assert read(family, silent) == read(family, expected), key


@pytest.mark.parametrize("key", ["query_pre_attn_scalar", "sliding_window_pattern", "layer_types"])
def test_a_key_that_gemma3_lacks_has_the_value_of_transformers(key):
    family = "Gemma3ForCausalLM"
    silent = {name: value for name, value in shape_of(family).items() if name != key}
    assert read(family, silent) == read(family, completed(family, silent))


@pytest.mark.parametrize(
    ("family", "key"), [("GemmaForCausalLM", "hidden_act"), ("FalconForCausalLM", "activation")]
)
@pytest.mark.parametrize("name", ["relu", "silu", "gelu_pytorch_tanh"])
def test_the_activation_is_that_of_the_config(family, key, name):
    assert read(family, {**shape_of(family), key: name}).layers[0].mlp.activation == name


def test_gelu_of_gemma1_is_the_one_by_tanh():
    config = {**shape_of("GemmaForCausalLM"), "hidden_act": "gelu"}
    assert read("GemmaForCausalLM", config) == read(
        "GemmaForCausalLM", {**config, "hidden_act": "gelu_pytorch_tanh"}
    )


@pytest.mark.parametrize("family", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_all_layers_have_a_window_from_layer_zero(family):
    windows = {"use_sliding_window": True, "max_window_layers": 0, "layer_types": None}
    layers = read(family, {**shape_of(family), "sliding_window": 9, **windows}).layers
    assert {layer.attention.window for layer in layers} == {9}


@pytest.mark.parametrize("family", ROPES)
def test_a_null_rotary_embedding_is_that_of_the_family(family):
    silent = {**shape_of(family), "rope_parameters": None}
    assert read(family, silent) == read(family, completed(family, silent))


@pytest.mark.parametrize(
    "family",
    ["SeedOssForCausalLM", "Ernie4_5ForCausalLM", "Llama4ForCausalLM", "GptOssForCausalLM"],
)
def test_a_null_head_dim_is_the_hidden_size_over_the_heads(family):
    decoder = read(family, {**shape_of(family), "head_dim": None})
    assert decoder.layers[0].attention.head_dim == 16


def test_only_known_architectures_have_values():
    assert {*MISSING_VALUES, *ROPES} <= {family.architecture for family in FAMILIES}


@pytest.mark.parametrize("family", ["Llama4ForCausalLM", "HeliumForCausalLM"])
def test_a_null_base_of_the_rotary_embedding_is_that_of_the_family(family):
    silent = {**shape_of(family), "rope_theta": None, "rope_parameters": None}
    layers = read(family, silent).layers
    thetas = {layer.attention.rope.theta for layer in layers if layer.attention.rope is not None}
    assert thetas == {MISSING_VALUES[family]["rope_theta"]}
