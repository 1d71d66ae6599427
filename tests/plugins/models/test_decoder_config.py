"""Model descriptions, and configs that are refused by name; without torch."""

from importlib import import_module
from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire_models.llama_config import read_llama
from quire_models.plugin import MODELS

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 77,
}


def describe(architecture: str, **config: Any) -> ModelDescription:
    name = MODELS[architecture]
    function = vars(import_module(f"quire_models.{name}_config"))[f"describe_{name}"]
    description: ModelDescription = function({**SIZES, **config})
    return description


@pytest.mark.parametrize("architecture", MODELS)
def test_the_description_has_what_the_engine_plans_with(architecture):
    description = describe(architecture, head_dim=8, dtype="bfloat16")
    assert description.architecture == architecture
    assert description.max_model_len == 77
    assert description.checkpoint_dtype == "bfloat16"
    assert description.quantization is None
    spec = "sliding_window" if architecture == "Gemma3ForCausalLM" else "full_attention"
    assert [
        (layer.name, layer.spec, layer.num_kv_heads, layer.head_dim)
        for layer in description.kv_layers
    ] == [(f"model.layers.{i}.self_attn.attention", spec, 2, 8) for i in range(2)]


@pytest.mark.parametrize("architecture", MODELS)
def test_the_kv_layers_are_modules_of_the_model(architecture):
    from model_parts import make_model

    from quire.layers import Attention

    config = {**SIZES, "architectures": [architecture], "head_dim": 8}
    modules = dict(make_model(config).named_modules())  # type: ignore[attr-defined]
    for layer in describe(architecture, head_dim=8).kv_layers:
        assert isinstance(modules[layer.name], Attention)
        assert modules[layer.name].name == layer.name


def test_the_older_spelling_of_the_dtype_is_read():
    assert describe("LlamaForCausalLM", torch_dtype="float16").checkpoint_dtype == "float16"


def test_qwen3_has_heads_of_128_unless_it_says_so():
    assert describe("Qwen3ForCausalLM").kv_layers[0].head_dim == 128
    assert describe("Qwen3ForCausalLM", head_dim=16).kv_layers[0].head_dim == 16


def test_others_divide_the_hidden_size():
    assert describe("LlamaForCausalLM").kv_layers[0].head_dim == 8
    assert describe("Qwen2ForCausalLM", head_dim=None).kv_layers[0].head_dim == 8


def test_without_kv_heads_there_are_as_many_as_query_heads():
    assert describe("LlamaForCausalLM", num_key_value_heads=None).kv_layers[0].num_kv_heads == 4


def test_a_head_size_that_is_given_need_not_divide_the_hidden_size():
    assert describe("LlamaForCausalLM", hidden_size=33, head_dim=8).kv_layers[0].head_dim == 8
    assert describe("Qwen3ForCausalLM", hidden_size=33).kv_layers[0].head_dim == 128


def test_the_newer_spelling_of_the_dtype_goes_before_the_older():
    config = {"dtype": "bfloat16", "torch_dtype": "float16"}
    assert describe("LlamaForCausalLM", **config).checkpoint_dtype == "bfloat16"
    assert describe("LlamaForCausalLM").checkpoint_dtype == "float32"


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_head_is_said_to_be_so(is_tied):
    description = describe("LlamaForCausalLM", tie_word_embeddings=is_tied)
    assert description.has_tied_head == is_tied


def test_a_silent_config_is_that_of_transformers():
    decoder = read_llama(SIZES)
    assert decoder.rms_norm_eps == 1e-6
    assert {decoder.qkv_bias, decoder.output_bias, decoder.mlp_bias} == {False}


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
def test_the_biases_of_llama_are_asked_for_apart(attention, mlp):
    decoder = read_llama({**SIZES, "attention_bias": attention, "mlp_bias": mlp})
    biases = (decoder.qkv_bias, decoder.output_bias, decoder.mlp_bias)
    assert biases == (attention, attention, mlp)


def test_a_quantized_checkpoint_names_its_method():
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert describe("LlamaForCausalLM", **config).quantization == "gptq"


@pytest.mark.parametrize(
    ("architecture", "config", "named"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
        ("Qwen3ForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
        ("Qwen3ForCausalLM", {"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("LlamaForCausalLM", {"hidden_size": 33}, "hidden_size"),
        ("LlamaForCausalLM", {"head_dim": 7}, "head_dim"),
        ("Qwen3ForCausalLM", {"head_dim": 7}, "head_dim"),
        ("LlamaForCausalLM", {"vocab_size": None}, "no vocab_size"),
        ("LlamaForCausalLM", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("LlamaForCausalLM", {"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ("LlamaForCausalLM", {"attention_bias": "yes"}, "attention_bias"),
        ("LlamaForCausalLM", {"mlp_bias": 1}, "mlp_bias"),
        ("Qwen2ForCausalLM", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ("Qwen3ForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ("Qwen3ForCausalLM", {"quantization_config": {"bits": 4}}, "quant_method"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(architecture, config, named):
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        describe(architecture, **config)
    assert architecture in str(caught.value)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_a_window_that_is_switched_off_does_not_matter(architecture):
    config = {"use_sliding_window": False, "sliding_window": 64, "layer_types": ["full_attention"]}
    assert describe(architecture, **config).sliding_window is None
