"""Gemma 4: layers that use the keys and values of others, inputs of layers, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_cases import CASES, FULL, GEMMA4_SMALL, SLIDING
from family_checkpoints import FamilyCase, write_family
from model_parts import make_model, random_tokens
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.errors import CheckpointCorruptError, RefusedError, UnsupportedModelError
from quire.layers import LayerContext
from quire.testing.model import TINY_SIZES
from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.layer_inputs import LayerInputs
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.layer_inputs_config import LayerInputsConfig
from quire_models.family_table import describe, read_decoder_config

FAMILY = "Gemma4ForCausalLM"
CASE = CASES[FAMILY]["shared, double wide"]
TOLERANCE = 1e-4
SHARED = r"\.layers\.[4-7]\."  # layers of GEMMA4_SMALL without keys of their own
INDEX = "model.safetensors.index.json"


def read(**values: Any) -> DecoderConfig:
    return read_decoder_config(FAMILY, {**TINY_SIZES, **GEMMA4_SMALL, **values})


def sources(**values: Any) -> list[int | None]:
    return [layer.attention.key_values_of for layer in read(**values).layers]


def test_the_last_layers_use_the_last_own_keys_of_their_type():
    own: list[int | None] = [None] * 4
    assert sources() == [*own, 2, 3, 2, 3]
    kinds = [SLIDING, FULL, FULL, SLIDING, FULL, FULL, SLIDING, FULL]
    assert sources(layer_types=kinds) == [*own, 2, 2, 3, 2]
    assert sources(num_kv_shared_layers=0) == [None] * 8


@pytest.mark.parametrize(
    ("shared", "missing"), [(8, f"{FULL} and of {SLIDING}"), (9, FULL), (7, SLIDING)]
)
def test_a_type_of_which_no_layer_has_keys_is_refused(shared, missing):
    with pytest.raises(
        UnsupportedModelError,
        match=rf"num_kv_shared_layers \({shared}\) of 8 layers .* of the type {missing}",
    ):
        read(num_kv_shared_layers=shared)


def test_only_layers_with_keys_of_their_own_have_a_cache():
    layers = describe({**TINY_SIZES, **GEMMA4_SMALL, "architectures": [FAMILY]}).kv_layers
    assert [layer.layer_index for layer in layers] == [0, 1, 2, 3]
    assert [layer.head_dim for layer in layers] == [32, 16, 16, 32]


def test_layers_without_keys_of_their_own_may_have_wider_mlps():
    assert [layer.mlp.width for layer in read().layers] == [96] * 4 + [192] * 4
    assert {layer.mlp.width for layer in read(use_double_wide_mlp=False).layers} == {96}
    assert {layer.mlp.width for layer in read(num_kv_shared_layers=0).layers} == {96}


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "num_kv_shared_layers",
        "use_double_wide_mlp",
        "global_head_dim",
        "layer_types",
        "sliding_window",
        "attention_k_eq_v",
    ],
)
def test_a_missing_key_has_the_value_of_transformers(key):
    options = {**CASE.options, "num_kv_shared_layers": 2}
    given = {name: value for name, value in options.items() if name != key}
    silent = {**TINY_SIZES, **given}
    whole = FamilyCase(CASE.model_type, given).transformers_config().to_dict()
    assert read_decoder_config(FAMILY, silent) == read_decoder_config(FAMILY, whole)


def test_without_a_size_layers_have_no_inputs():
    assert read(hidden_size_per_layer_input=0).layer_inputs is None


def test_token_ids_without_inputs_of_layers_are_refused():
    with pytest.raises(
        UnsupportedModelError,
        match=r"vocab_size_per_layer_input \(319\) must be at least vocab_size \(320\)",
    ):
        read(vocab_size_per_layer_input=319)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_family(tmp_path_factory.mktemp("small"), CASE)


def copied(checkpoint: Any, folder: Path, **tensors: torch.Tensor) -> Path:
    """Write the checkpoint with further tensors."""
    for file in checkpoint.folder.glob("*.json"):
        (folder / file.name).write_text(file.read_text())
    weights = load_file(checkpoint.folder / "model.safetensors")
    save_file({**weights, **tensors}, folder / "model.safetensors")
    return folder


def test_keys_and_values_that_no_layer_uses_are_left_out(checkpoint, tmp_path):
    unused = {
        f"model.layers.{layer}.self_attn.{name}.weight": torch.randn(3)
        for layer in (4, 7)
        for name in ("k_proj", "v_proj", "k_norm")
    }
    model = make_model(checkpoint.config)
    load_weights(model, copied(checkpoint, tmp_path, **unused))
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


def test_keys_of_a_layer_that_uses_them_are_required(checkpoint, tmp_path):
    folder = copied(checkpoint, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.3.self_attn.k_norm.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointCorruptError, match=r"layers\.3\.self_attn\.k_norm\.weight"):
        load_weights(make_model(checkpoint.config), folder)


def test_layers_without_keys_may_be_loaded_before_the_layers_whose_keys_they_use(
    checkpoint, tmp_path
):
    copied(checkpoint, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    shared = {name: weights.pop(name) for name in list(weights) if re.search(SHARED, name)}
    files = {"model-1.safetensors": shared, "model-2.safetensors": weights}
    index = {name: file for file, tensors in files.items() for name in tensors}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": index}))
    for file, tensors in files.items():
        save_file(tensors, tmp_path / file)
    model = make_model(checkpoint.config)
    load_weights(model, tmp_path)
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


def test_an_unknown_tensor_of_a_layer_without_keys_is_named(checkpoint, tmp_path):
    name = "model.layers.4.self_attn.w_proj.weight"
    folder = copied(checkpoint, tmp_path, **{name: torch.zeros(3)})
    with pytest.raises(CheckpointCorruptError, match=re.escape(name)):
        load_weights(make_model(checkpoint.config), folder)


def test_embeddings_in_place_of_token_ids_are_refused(checkpoint):
    model = make_model(checkpoint.config)
    load_weights(model, checkpoint.folder)
    with pytest.raises(UnsupportedModelError, match="looked up by token id"):
        model.model.inputs_of_layers(None, torch.zeros(3, 64), None)


def test_a_backend_may_write_over_keys_that_other_layers_use(checkpoint):
    model = make_model(checkpoint.config)
    load_weights(model, checkpoint.folder)
    for layer in list(model.model.layers.values())[:4]:
        attention = layer.self_attn.attention
        attention.forward_rotary = overwriting(attention.forward_rotary)
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


def overwriting(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward_rotary(qkv: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = forward(qkv.clone(), *rest)
        qkv.fill_(torch.nan)
        return out

    return forward_rotary


def test_half_precision_is_rounded_where_transformers_rounds():
    config = LayerInputsConfig(size=12, vocab_size=5, activation="silu", norm=NormConfig(eps=1e-6))
    context = LayerContext(dtype=torch.bfloat16, device=torch.device("cpu"))
    inputs = LayerInputs(config, hidden_size=8, num_layers=2, context=context)
    assert inputs.table_scale == float(torch.tensor(12**0.5).bfloat16()) != 12**0.5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "its layers have inputs of their own, made from token ids"),
        (
            {"hidden_size_per_layer_input": 0},
            "some of its layers use the keys and values of others",
        ),
    ],
)
def test_pipeline_stages_are_refused(tmp_path, options, reason):
    case = FamilyCase(CASE.model_type, {**CASE.options, **options})
    folder = write_family(tmp_path, case).folder
    with pytest.raises(RefusedError) as caught:
        LLM(str(folder), pipeline_parallel_size=2)
    assert str(caught.value) == (
        f"model {FAMILY!r} cannot be divided into pipeline stages: {reason}; set "
        "pipeline_parallel_size to 1"
    )


def test_shared_keys_and_values_take_no_memory_of_the_cache(tmp_path):
    """With the same bytes, four layers of eight give twice the blocks."""
    found = {}
    for shared in (0, 4):
        case = FamilyCase(CASE.model_type, {**CASE.options, "num_kv_shared_layers": shared})
        folder = write_family(tmp_path / str(shared), case).folder
        options = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 2**21}
        with LLM(str(folder), **options) as llm:
            found[shared] = llm.stats().num_blocks
            llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=3))
    assert found[4] == pytest.approx(2 * found[0], rel=0.05)


def test_attention_of_the_same_type_has_the_same_options():
    layers = read(attention_k_eq_v=True).layers
    attentions = [layer.attention for layer in layers]
    assert all(isinstance(attention, AttentionConfig) for attention in attentions)
    assert attentions[5].has_key_values == attentions[3].has_key_values is True
