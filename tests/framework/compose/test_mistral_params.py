"""Mistral's params.json stands for the config of the same model on Hugging Face."""

import json

import pytest

from quire.compose.checkpoint import read_config
from quire.compose.mistral_params import config_from_params
from quire.errors import CheckpointCorruptError, UnsupportedModelError
from quire.launch.agreement import checkpoint_digest

PARAMS = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
    "n_kv_heads": 8, "norm_eps": 1e-05, "vocab_size": 32768, "rope_theta": 1000000.0,
}  # fmt: skip


def test_a_dense_model_has_the_config_of_its_hugging_face_twin():
    assert config_from_params(PARAMS | {"max_seq_len": 8192, "sliding_window": 4096}) == {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "vocab_size": 32768,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
    }


def test_experts_make_it_a_mixtral():
    config = config_from_params(PARAMS | {"moe": {"num_experts": 8, "num_experts_per_tok": 2}})
    assert config["architectures"] == ["MixtralForCausalLM"]
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)


def test_yarn_is_a_kind_of_rope():
    yarn = {"factor": 16.0, "original_max_position_embeddings": 16384, "beta": 32, "alpha": 1,
            "apply_scale": False}  # fmt: skip
    assert config_from_params(PARAMS | {"yarn": yarn})["rope_scaling"] == {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384,
        "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "extra",
    [{"vision_encoder": {"a": 1}}, {"q_lora_rank": 4}, {"moe": {"x": 1}}, {"yarn": {"x": 1}}],
)
def test_what_has_no_counterpart_is_refused_by_name(extra):
    with pytest.raises(UnsupportedModelError, match=next(iter(extra))):
        config_from_params(PARAMS | extra)


@pytest.mark.parametrize("key", ["moe", "yarn"])
@pytest.mark.parametrize("value", [3, True, "x", [1]])
def test_what_is_no_object_is_refused_by_name(key, value):
    with pytest.raises(UnsupportedModelError, match=f"{key} in params.json must be an object"):
        config_from_params(PARAMS | {key: value})


def test_what_is_off_does_not_matter():
    assert config_from_params(PARAMS | {"q_lora_rank": None, "use_biases": False}) == (
        config_from_params(PARAMS)
    )


def test_a_missing_size_is_named():
    with pytest.raises(UnsupportedModelError, match="lacks n_layers, hidden_dim"):
        config_from_params({key: PARAMS[key] for key in ("dim", "n_heads", "vocab_size")})


def test_a_folder_may_have_params_in_place_of_a_config(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    assert read_config(tmp_path) == config_from_params(PARAMS)
    before = checkpoint_digest(tmp_path)
    (tmp_path / "params.json").write_text(json.dumps(PARAMS | {"dim": 8}))
    assert checkpoint_digest(tmp_path) != before
    (tmp_path / "config.json").write_text("{}")
    assert read_config(tmp_path) == {}


def test_broken_params_are_named(tmp_path):
    (tmp_path / "params.json").write_text("[")
    with pytest.raises(CheckpointCorruptError, match=r"params\.json is not JSON"):
        read_config(tmp_path)
