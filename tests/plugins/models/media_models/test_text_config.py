"""Configs of text models inside of others: defaults, ties, and what is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire_models.family_table import FAMILIES, describe
from quire_models.media_models.media_table import MEDIA_MODELS
from quire_models.media_models.text_types import TEXT_TYPES

# Values whose default quire does not support, or for which there is none.
NEEDED: dict[str, dict[str, Any]] = {
    "glm4v_moe_text": {"head_dim": 128},
}


def config_of(architecture: str = "LlavaForConditionalGeneration", **values: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "text_config": {"model_type": "llama"}, **values}


def with_text(text_type: str, **values: Any) -> dict[str, Any]:
    return config_of(text_config={"model_type": text_type, **values})


def test_text_types_are_of_families_of_the_table():
    assert {kind.family for kind in TEXT_TYPES.values()} <= {each.architecture for each in FAMILIES}


@pytest.mark.parametrize("text_type", TEXT_TYPES)
def test_values_that_a_text_config_lacks_are_those_of_transformers(text_type):
    from transformers import AutoConfig

    needed = NEEDED.get(text_type, {})
    whole = json.loads(AutoConfig.for_model(text_type, **needed).to_json_string(use_diff=False))
    whole |= {"model_type": text_type, "dtype": None}
    whole.pop("tie_word_embeddings" if text_type == "qwen3_vl_moe_text" else "", None)
    expected, found = (
        describe(config_of(text_config=whole)),
        describe(with_text(text_type, **needed)),
    )
    assert replace(found, config={}) == replace(expected, config={})


def test_a_config_without_a_text_config_is_refused():
    config = config_of()
    del config["text_config"]
    with pytest.raises(UnsupportedModelError, match=r"LlavaFor.*: config\.json has no text_config"):
        describe(config)


@pytest.mark.parametrize("wrong", [7, "llama", [], {"model_type": 7}])
def test_a_text_config_of_a_wrong_type_is_refused_by_name(wrong):
    with pytest.raises(UnsupportedModelError, match="text_config"):
        describe(config_of(text_config=wrong))


def test_an_unknown_text_model_is_refused_with_those_that_are_known():
    with pytest.raises(UnsupportedModelError, match=r"model_type 'mamba9'.*known are.*gemma3_text"):
        describe(with_text("mamba9"))


def test_a_wrong_value_is_named_with_its_path():
    with pytest.raises(
        UnsupportedModelError, match=r"text_config\.hidden_size in config\.json must"
    ):
        describe(with_text("llama", hidden_size="many"))


@pytest.mark.parametrize("model", MEDIA_MODELS, ids=lambda model: model.architecture)
def test_a_text_config_without_a_type_is_of_the_usual_one(model):
    text = NEEDED.get(model.text_type, {})
    assert (
        describe(config_of(model.architecture, text_config={**text, "vocab_size": 777})).vocab_size
        == 777
    )


def test_values_of_qwen2_vl_may_stand_outside():
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1280},
    }
    found = describe(config)
    assert (found.hidden_size, found.num_layers, found.has_tied_head) == (2048, 36, True)
    assert found.checkpoint_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("architecture", "outer", "inner", "tied"),
    [
        ("Gemma3ForConditionalGeneration", None, None, True),
        ("Gemma3ForConditionalGeneration", False, True, False),
        ("Mistral3ForConditionalGeneration", True, False, True),
        ("Mistral3ForConditionalGeneration", None, None, False),
        ("Mistral3ForConditionalGeneration", None, True, True),
        ("LlavaForConditionalGeneration", False, True, True),
        ("LlavaForConditionalGeneration", False, False, False),
        ("Qwen3VLMoeForConditionalGeneration", False, True, False),
    ],
)
def test_the_head_is_tied_as_in_transformers(architecture, outer, inner, tied):
    values = {"tie_word_embeddings": inner, "vocab_size": 320}
    found = describe(config_of(architecture, tie_word_embeddings=outer, text_config=values))
    assert found.has_tied_head is tied


def test_dtype_and_quantization_are_those_of_the_outer_config():
    found = describe(
        config_of(
            dtype="bfloat16",
            quantization_config={"quant_method": "fp8"},
            text_config={"model_type": "llama", "dtype": "float16"},
        )
    )
    assert (found.checkpoint_dtype, found.quantization) == ("bfloat16", "fp8")
    assert found.config["quantization_config"] == {"quant_method": "fp8"}
    assert describe(with_text("llama", dtype="float16")).checkpoint_dtype == "float16"


def test_a_family_that_is_not_causal_is_refused():
    with pytest.raises(UnsupportedModelError, match="use_bidirectional_attention"):
        describe(with_text("gemma2", use_bidirectional_attention=True))
