"""The metadata of a GGUF file is the config of the same model on Hugging Face."""

import numpy as np
import pytest
from gguf_files import Blocks, Number, write_gguf

from quire.compose.gguf.model_config import config_of
from quire.compose.gguf.split_files import read_files
from quire.errors import CheckpointCorruptError, UnsupportedModelError

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.freq_base": 500000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": 999,
}
TENSORS = {"token_embd.weight": np.zeros((40, 64)), "output.weight": np.zeros((40, 64))}
FACTORS = {"rope_freqs.weight": np.linspace(1, 8, 8)}


@pytest.fixture
def config(tmp_path):
    def read(tensors=TENSORS, **changes):
        metadata = METADATA | {key.replace("__", "."): value for key, value in changes.items()}
        metadata = {key: value for key, value in metadata.items() if value is not None}
        file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
        return config_of(read_files(file))

    return read


def named(architecture):
    """The same metadata under another architecture."""
    renamed = {key.replace("llama.", f"{architecture}."): value for key, value in METADATA.items()}
    return dict.fromkeys(METADATA) | renamed | {"general.architecture": architecture}


def test_llama_has_the_config_of_its_hugging_face_twin(config):
    assert config() == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 40,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }


@pytest.mark.parametrize(
    ("architecture", "model"), [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")]
)
def test_other_families_have_their_own_names(config, architecture, model):
    found = config(**named(architecture))
    assert (found["architectures"], found["model_type"]) == ([model], architecture)
    assert found["use_sliding_window"] is False


def test_a_head_may_have_a_size_of_its_own(config):
    sizes = {
        "llama__attention__key_length": 32,
        "llama__attention__value_length": 32,
        "llama__rope__dimension_count": 32,
    }
    assert config(**sizes)["head_dim"] == 32


def test_without_a_head_the_embedding_is_the_head(config):
    tensors = {"token_embd.weight": np.zeros((40, 64)), "output_norm.weight": np.zeros(64)}
    assert config(tensors)["tie_word_embeddings"] is True


def test_biases_are_known_by_their_tensors(config):
    found = config(TENSORS | {"blk.0.attn_q.bias": np.zeros(64), "blk.0.ffn_up.bias": np.zeros(96)})
    assert (found["attention_bias"], found["mlp_bias"]) == (True, True)


def packed(kind, block, num_bytes):
    return Blocks(np.zeros((40, 256 // block * num_bytes), np.uint8), kind, (40, 256))


def test_the_dtype_is_that_of_most_elements(config):
    half = Blocks(np.zeros((80, 64), np.float16), 1, (80, 64))
    assert config(TENSORS | {"output.weight": half})["torch_dtype"] == "float16"
    bfloat = Blocks(np.zeros((80, 64), np.uint16), 30, (80, 64))
    assert config(TENSORS | {"output.weight": bfloat})["torch_dtype"] == "bfloat16"


def test_weights_in_blocks_are_read_by_a_method_of_their_own(config):
    found = config(TENSORS | {"output.weight": packed(12, 256, 144)})
    assert found["torch_dtype"] == "bfloat16"
    assert found["quantization_config"] == {"quant_method": "gguf"}
    assert "quantization_config" not in config()


def test_factors_of_the_rotary_embedding_are_those_of_each_wavelength(config):
    found = config(TENSORS | FACTORS)["rope_scaling"]
    assert found == {
        "rope_type": "longrope",
        "short_factor": pytest.approx(np.linspace(1, 8, 8)),
        "long_factor": found["short_factor"],
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.0,
    }


@pytest.mark.parametrize("factors", [np.ones(4), np.ones((8, 1))])
def test_factors_of_another_shape_are_refused(config, factors):
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight .* 8 factors"):
        config(TENSORS | {"rope_freqs.weight": factors})


def test_linear_and_yarn_scaling_are_read(config):
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    assert config(**linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = linear | {
        "llama__rope__scaling__type": "yarn",
        "llama__rope__scaling__original_context_length": 1024,
        "llama__rope__scaling__yarn_beta_fast": 16.0,
        "llama__rope__scaling__finetuned": True,
    }
    assert config(**yarn)["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
    }  # fmt: skip
    assert "rope_scaling" not in config(**linear | {"llama__rope__scaling__type": "none"})
    with pytest.raises(UnsupportedModelError, match="of 'longrope'; quire reads linear and yarn"):
        config(**linear | {"llama__rope__scaling__type": "longrope"})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight .* beside .* 'linear'"):
        config(TENSORS | FACTORS, **linear)


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3moe", "mamba", "", 7])
def test_another_architecture_is_refused_with_those_that_are_read(config, architecture):
    with pytest.raises(UnsupportedModelError) as caught:
        config(general__architecture=architecture)
    assert f"the architecture {architecture!r}; of GGUF files quire reads llama, qwen2" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8), ("attention.sliding_window", 1024), ("logit_scale", 0.5),
        ("attention.causal", False), ("attention.clamp_kqv", 8.0), ("new", ["a"]),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_name(config, key, value):
    with pytest.raises(UnsupportedModelError, match=f"sets llama.{key}, which quire does not read"):
        config(**{f"llama.{key}": value})


@pytest.mark.parametrize(
    ("key", "value"), [("expert_count", 0), ("attention.causal", True), ("pooling_type", 3)]
)
def test_what_changes_nothing_is_passed_over(config, key, value):
    assert config(**{f"llama.{key}": value}) == config()


@pytest.mark.parametrize("key", ["rope.dimension_count", "attention.value_length"])
def test_a_part_of_a_head_is_refused(config, key):
    with pytest.raises(UnsupportedModelError, match=f"llama.{key} of 8 with heads of 16"):
        config(**{f"llama.{key}": 8})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", None, "lacks llama.block_count"),
        ("block_count", 0, "must be a whole number from 1, got 0"),
        ("block_count", 2**31, "claims 2147483648 layers .* and has 2 tensors"),
        ("block_count", "two", "must be a whole number from 1, got 'two'"),
        ("feed_forward_length", [96, 96], "must be a whole number from 1, got an array"),
        ("attention.head_count", Number(-4, "i"), "must be a whole number from 1, got -4"),
        ("attention.layer_norm_rms_epsilon", None, "lacks llama.attention.layer_norm_rms_epsilon"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "must be a number above 0, got nan"),
        ("rope.freq_base", Number(float("inf"), "d"), "must be a number above 0, got inf"),
    ],
)
def test_a_missing_or_wrong_value_is_named(config, key, value, message):
    with pytest.raises(CheckpointCorruptError, match=message):
        config(**{f"llama.{key}": value})


def test_a_missing_embedding_is_named(config):
    with pytest.raises(CheckpointCorruptError, match=r"lacks the tensor token_embd\.weight"):
        config({"output.weight": np.zeros((40, 64)), "output_norm.weight": np.zeros(64)})


def test_an_embedding_that_is_no_matrix_is_an_error(config):
    with pytest.raises(CheckpointCorruptError, match=r"token_embd\.weight .* shape \[40\]"):
        config({"token_embd.weight": np.zeros(40), "output_norm.weight": np.zeros(64)})
