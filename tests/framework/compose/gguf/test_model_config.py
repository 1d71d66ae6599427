"""The metadata of a GGUF file is the config of the same model on Hugging Face."""

import numpy as np
import pytest
from gguf_files import Blocks, Number, write_gguf

from quire.compose.gguf.families import FAMILIES
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
    assert found["quantization_config"]["quant_method"] == "gguf"
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


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, -1.0])
def test_factors_that_are_none_are_named_with_the_file(config, wrong):
    factors = np.array([1.0, 2.0, wrong, 4.0, 5.0, 6.0, 7.0, 8.0])
    with pytest.raises(
        CheckpointCorruptError, match=rf"rope_freqs\.weight in .*gguf.* has 1 .* such as {wrong}; "
    ):
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
    for key in ("yarn_attn_factor", "attn_factor"):
        found = config(
            **yarn, **{f"llama.rope.scaling.{key}": 1.5, "llama.rope.scaling.yarn_ext_factor": 1.0}
        )
        assert found["rope_scaling"]["attention_factor"] == 1.5
    assert "rope_scaling" not in config(**linear | {"llama__rope__scaling__type": "none"})
    with pytest.raises(UnsupportedModelError, match=r"attn_factor with a .*type of 'linear'"):
        config(**linear, **{"llama.rope.scaling.attn_factor": 1.5})
    with pytest.raises(UnsupportedModelError, match=r"sets llama\.rope\.scaling\.yarn_ext_factor"):
        config(**yarn, **{"llama.rope.scaling.yarn_ext_factor": 0.5})
    with pytest.raises(UnsupportedModelError, match="of 'longrope'; quire reads linear and yarn"):
        config(**linear | {"llama__rope__scaling__type": "longrope"})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight .* beside .* 'linear'"):
        config(TENSORS | FACTORS, **linear)


@pytest.mark.parametrize("architecture", ["gemma3n", "lfm2", "mamba", "", 7])
def test_another_architecture_is_refused_with_those_that_are_read(config, architecture):
    with pytest.raises(UnsupportedModelError) as caught:
        config(general__architecture=architecture)
    named = f"the architecture {architecture!r} (general.architecture); of GGUF files quire reads"
    known = ", ".join(FAMILIES)
    assert f"{named} {known}; use the model's files in the layout of" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 1024), ("logit_scale", 0.5),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__type": "mmproj"}, "is the encoder of images .* give the file of its text"),
        ({"general__architecture": "clip"}, "is the encoder of images or sound of a model"),
        ({"general__type": "adapter"}, "is an adapter; give the file of its model"),
        ({"general__type": "imatrix"}, "is the statistics of a quantization"),
    ],
)
def test_what_is_no_model_is_named(config, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        config(**changes)


def test_llama_with_experts_is_mixtral(config):
    found = config(llama__expert_count=8, llama__expert_used_count=2)
    assert (found["architectures"], found["model_type"]) == (["MixtralForCausalLM"], "mixtral")
    assert (found["num_local_experts"], found["num_experts_per_tok"]) == (8, 2)
    with pytest.raises(CheckpointCorruptError, match=r"lacks llama\.expert_used_count in its meta"):
        config(llama__expert_count=8)


GEMMA2 = {
    "gemma2__attn_logit_softcapping": 50.0,
    "gemma2__final_logit_softcapping": 30.0,
    "gemma2__attention__sliding_window": 4,
}


@pytest.mark.parametrize(
    ("pattern", "types"), [(None, "sf"), (2, "sf"), (1, "ff"), ([False, True], "fs")]
)
def test_windows_are_in_the_layers_that_the_pattern_says(config, pattern, types):
    found = config(**named("gemma2"), **GEMMA2, gemma2__attention__sliding_window_pattern=pattern)
    names = {"s": "sliding_attention", "f": "full_attention"}
    assert (found["sliding_window"], found["layer_types"]) == (4, [names[each] for each in types])


@pytest.mark.parametrize("pattern", [[True], 0, "all", ["a", "b"]])
def test_a_pattern_that_is_none_is_named(config, pattern):
    with pytest.raises(CheckpointCorruptError, match=r"sliding_window_pattern in .* must be"):
        config(**named("gemma2"), **GEMMA2, gemma2__attention__sliding_window_pattern=pattern)


def test_only_the_largest_gemma_scales_scores_by_the_hidden_size(config):
    largest = {"gemma2.block_count": 46, "gemma2.embedding_length": 128}
    largest |= {"gemma2.attention.key_length": 16, "gemma2.attention.value_length": 16}
    tensors = {"token_embd.weight": np.zeros((40, 128))}
    tensors |= {f"blk.{i}.attn_norm.weight": np.zeros(128) for i in range(46)}
    assert config(**named("gemma2"), **GEMMA2)["query_pre_attn_scalar"] == 16
    found = config(tensors, **(named("gemma2") | largest), **GEMMA2)
    assert found["query_pre_attn_scalar"] == 32


GEMMA4 = {
    "gemma4.attention.key_length": 16,
    "gemma4.attention.value_length": 16,
    "gemma4.attention.key_length_swa": 8,
    "gemma4.attention.sliding_window": 4,
    "gemma4.attention.sliding_window_pattern": [True, False],
    "gemma4.attention.shared_kv_layers": 0,
    "gemma4.embedding_length_per_layer_input": 0,
}
ROTATED = {"rope_freqs.weight": np.array([1.0, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30])}


def test_long_and_short_factors_are_those_of_phi_3(config):
    tensors = TENSORS | {
        "rope_factors_long.weight": np.full(8, 4.0), "rope_factors_short.weight": np.full(8, 2.0),
    }  # fmt: skip
    scaling = {
        "phi3.rope.scaling.original_context_length": 64, "phi3.rope.scaling.attn_factor": 1.25,
    }  # fmt: skip
    for kind in (None, "longrope"):
        found = config(tensors, **named("phi3") | scaling | {"phi3.rope.scaling.type": kind})
        assert found["original_max_position_embeddings"] == 64
        assert found["rope_scaling"] == {
            "rope_type": "longrope", "short_factor": [2.0] * 8, "long_factor": [4.0] * 8,
            "original_max_position_embeddings": 64, "attention_factor": 1.25,
        }  # fmt: skip
    del tensors["rope_factors_long.weight"]
    with pytest.raises(CheckpointCorruptError, match=r"lacks the tensor rope_factors_long\.weight"):
        config(tensors, **named("phi3") | scaling)


def test_latent_attention_has_sizes_of_its_own(config):
    keys = {
        "attention.kv_lora_rank": 32, "attention.key_length": 40, "attention.value_length": 32,
        "attention.key_length_mla": 24, "attention.value_length_mla": 12, "rope.dimension_count": 8,
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "leading_dense_block_count": 1,
    }  # fmt: skip
    latent = named("deepseek2") | {f"deepseek2.{key}": value for key, value in keys.items()}
    found = config(**latent)
    sizes = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
    assert [found[size] for size in sizes] == [16, 8, 12, 32, None]
    assert found["architectures"] == ["DeepseekV2ForCausalLM"]
    sigmoid = config(**latent | {"deepseek2.expert_gating_func": 2})
    assert sigmoid["architectures"] == ["DeepseekV3ForCausalLM"]
    with pytest.raises(
        CheckpointCorruptError, match=r"more than rope\.dimension_count \(8\), got 8"
    ):
        config(**latent | {"deepseek2.attention.key_length_mla": 8})


def test_layers_of_gemma_4_differ(config):
    found = config(
        TENSORS | ROTATED | {"blk.1.attn_v.weight": np.zeros((16, 64))},
        **named("gemma4")
        | GEMMA4
        | {"gemma4.attention.head_count_kv": [4, 2], "gemma4.rope.freq_base_swa": 100.0},
    )
    assert (found["head_dim"], found["global_head_dim"]) == (8, 16)
    assert (found["num_key_value_heads"], found["num_global_key_value_heads"]) == (4, 2)
    assert (found["attention_k_eq_v"], found["enable_moe_block"]) == (False, False)
    assert found["rope_parameters"] == {
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 500000.0, "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_length": [96]}, "must be a whole number from 1, or one for each layer"),
        ({"feed_forward_length": [96, -1]}, "must be a whole number from 1, or one for each"),
        ({"feed_forward_length": [96, 100]}, "must be equal, or twice in the last 0 layers"),
        ({"attention.value_length_swa": 16}, "must be 8, as attention.key_length_swa"),
        ({"rope.dimension_count_swa": 4}, "must be 8, as attention.key_length_swa"),
        ({"attention.key_length_swa": None}, "lacks gemma4.attention.key_length_swa"),
    ],
)
def test_layers_of_gemma_4_that_contradict_each_other_are_named(config, changes, message):
    changes = {f"gemma4.{key}": value for key, value in changes.items()}
    with pytest.raises(CheckpointCorruptError, match=message):
        config(TENSORS | ROTATED, **named("gemma4") | GEMMA4 | changes)


@pytest.mark.parametrize("factors", [[1.0, 2.0] * 4, [1.0] * 4 + [3.0] * 4])
def test_factors_of_gemma_4_mark_what_is_rotated(config, factors):
    with pytest.raises(
        UnsupportedModelError, match=r"rope_freqs\.weight in .* must be ones, and 1e"
    ):
        config(TENSORS | {"rope_freqs.weight": np.array(factors)}, **named("gemma4") | GEMMA4)


def test_a_part_of_a_head_is_rotated_in_families_that_have_it(config):
    found = config(**(named("glm4") | {"glm4.rope.dimension_count": 8}))
    assert found["partial_rotary_factor"] == 0.5
    assert config(**named("glm4"))["partial_rotary_factor"] == 1.0


def test_a_value_that_the_family_cannot_have_is_refused(config):
    moe = named("qwen3moe") | {
        "qwen3moe.expert_count": 4,
        "qwen3moe.expert_used_count": 2,
        "qwen3moe.expert_feed_forward_length": 32,
    }
    assert config(**moe, qwen3moe__expert_gating_func=1)["norm_topk_prob"] is True
    assert config(**moe, qwen3moe__expert_weights_norm=False)["norm_topk_prob"] is False
    with pytest.raises(UnsupportedModelError, match=r"sets qwen3moe\.expert_gating_func, which"):
        config(**moe, qwen3moe__expert_gating_func=2)


def test_layers_that_predict_drafts_are_left_out(config):
    keys = {
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "leading_dense_block_count": 1,
        "nextn_predict_layers": 1,
    }  # fmt: skip
    moe = named("glm4moe") | {f"glm4moe.{key}": value for key, value in keys.items()}
    assert config(**moe)["num_hidden_layers"] == 1
    with pytest.raises(CheckpointCorruptError, match="must be less than the 2 layers, got 2"):
        config(**moe | {"glm4moe.nextn_predict_layers": 2})


def test_more_tokens_than_rows_of_the_embedding_are_named(config):
    with pytest.raises(CheckpointCorruptError, match=r"has 41 tokens \(tokenizer\.ggml\.tokens\)"):
        config(tokenizer__ggml__tokens=[str(i) for i in range(41)])


def test_a_missing_embedding_is_named(config):
    with pytest.raises(CheckpointCorruptError, match=r"lacks the tensor token_embd\.weight"):
        config({"output.weight": np.zeros((40, 64)), "output_norm.weight": np.zeros(64)})


def test_an_embedding_that_is_no_matrix_is_an_error(config):
    with pytest.raises(CheckpointCorruptError, match=r"token_embd\.weight .* shape \[40\]"):
        config({"token_embd.weight": np.zeros(40), "output_norm.weight": np.zeros(64)})
