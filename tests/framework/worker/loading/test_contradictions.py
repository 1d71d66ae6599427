"""A config that contradicts the tensors is an error with its value, and what the tensors have."""

from typing import Any

import pytest
from model_parts import make_model
from safetensors.torch import load_file, save_file

from quire.errors import CheckpointCorruptError
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.worker.loading.weight_loading import load_weights

ARCHITECTURE = "Qwen3ForCausalLM"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> WrittenCheckpoint:
    return write_checkpoint(tmp_path_factory.mktemp("model"), ARCHITECTURE, num_hidden_layers=2)


def refusal(written: WrittenCheckpoint, **changes: Any) -> str:
    """The error of a model with a changed config."""
    config = written.config | changes
    with pytest.raises(CheckpointCorruptError) as caught:
        load_weights(make_model(config), written.folder, config=config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("vocab_size", 300, 320),
        ("intermediate_size", 128, 112),
        ("hidden_size", 48, 64),
        ("head_dim", 8, 16),
    ],
)
def test_a_size_is_named_with_both_values(written, key, value, found):
    text = refusal(written, **{key: value})
    assert f"In config.json {key} is {value}, and the tensors have {found}" in text


def test_the_first_tensors_are_listed_with_both_shapes(written):
    text = refusal(written, intermediate_size=128)
    assert (
        "tensor model.layers.0.mlp.down_proj.weight in model.safetensors has shape [64, 112], but "
        "config.json requires [64, 128]" in text
    )
    assert "; and 3 more. In" in text


def test_a_number_of_heads_names_a_tensor_and_no_wrong_key(written):
    text = refusal(written, num_key_value_heads=1)
    assert "self_attn.k_proj.weight" in text
    assert "In config.json" not in text


def test_a_value_that_other_tensors_confirm_is_not_blamed(written):
    """Two heads need 32 rows; the keys have as many, rightly."""
    text = refusal(written, num_attention_heads=2, some_size=32)
    assert "self_attn.o_proj.weight" in text
    assert "some_size" not in text


@pytest.mark.parametrize("value", [1, 3, 5])
def test_a_number_of_layers_is_named_with_both_values(written, value):
    text = refusal(written, num_hidden_layers=value)
    assert f"In config.json num_hidden_layers is {value}, and the tensors have 2 layers" in text


def test_one_missing_tensor_of_a_layer_says_nothing_of_their_number(written, tmp_path):
    weights = load_file(written.folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointCorruptError) as caught:
        load_weights(make_model(written.config), tmp_path, config=written.config)
    assert str(caught.value).endswith("missing: model.layers.1.mlp.up_proj.weight")


def test_an_option_of_biases_lists_the_tensors(written):
    text = refusal(written, attention_bias=True)
    assert "8 tensors are missing: model.layers.0.self_attn.q_proj.bias" in text
    assert "num_hidden_layers" not in text


def test_draft_layers_behind_the_last_one_are_left_out(written):
    config = written.config | {"num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    load_weights(make_model(config), written.folder, config=config)


def test_a_draft_layer_that_nothing_announces_is_unexpected(written):
    assert "model.layers.1." in refusal(written, num_hidden_layers=1)


@pytest.mark.parametrize(
    ("end", "methods"),
    [("qweight", "gptq or awq"), ("weight_packed", "compressed-tensors")],
)
@pytest.mark.parametrize(("own", "says"), [({}, "names none"), ({"quant_method": "fp8"}, "'fp8'")])
def test_tensors_of_another_quantization_are_named(written, tmp_path, end, methods, own, says):
    tensors = load_file(written.folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[f"{name.removesuffix('weight')}{end}"] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    config = written.config | {"quantization_config": own}
    with pytest.raises(CheckpointCorruptError) as caught:
        load_weights(make_model(written.config), tmp_path, config=config)
    text = str(caught.value)
    assert f"Tensors named *.{end} are those of a checkpoint quantized by {methods}" in text
    assert says in text
