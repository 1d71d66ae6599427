"""Tiny test checkpoints: reproducible, random in every parameter, with varied output."""

import json

import pytest
import torch
from model_parts import greedy, load_model, random_tokens
from safetensors.torch import load_file
from tokenizers import Tokenizer

from quire.testing.checkpoints import tensor_shapes, write_checkpoint

ARCHITECTURES = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"]


def test_the_same_seed_gives_the_same_file(tmp_path):
    files = [
        write_checkpoint(tmp_path / name, "Qwen3ForCausalLM", seed=seed).folder
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, same, other = ((file / "model.safetensors").read_bytes() for file in files)
    assert first == same
    assert first != other


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_parameter_has_a_default_value(tmp_path, architecture):
    options = {"attention_bias": True, "mlp_bias": architecture == "LlamaForCausalLM"}
    written = write_checkpoint(tmp_path, architecture, **options)
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(weight, written.weights[name])
        assert weight.std() > 0.02, name
        if "norm" in name:
            distance = 1.0 if architecture == "Gemma3ForCausalLM" else 0.0
            assert weight.mean() + distance > 0.5, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_output_varies(tmp_path, architecture, tied, seed):
    torch.set_num_threads(1)
    written = write_checkpoint(tmp_path, architecture, seed=seed, tie_word_embeddings=tied)
    assert len(set(greedy(load_model(written), random_tokens(8), 64))) >= 32


def test_the_tokenizer_gives_every_text_back(tmp_path):
    write_checkpoint(tmp_path, "LlamaForCausalLM")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "a <|im_start|> Wörd, 漢字 🙂\n\t"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == 320
    assert tokenizer.token_to_id("<|im_start|>") in ids


def test_the_chat_template_is_chatml(tmp_path):
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    write_checkpoint(tmp_path, "LlamaForCausalLM")
    template = json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]
    text = (
        ImmutableSandboxedEnvironment()
        .from_string(template)
        .render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_third_party_architecture_names_its_layout(tmp_path):
    written = write_checkpoint(tmp_path, "AcmeForCausalLM", layout="qwen2")
    assert written.config["architectures"] == ["AcmeForCausalLM"]
    assert "model.layers.0.self_attn.q_proj.bias" in written.weights


def test_an_unknown_layout_is_refused(tmp_path):
    with pytest.raises(ValueError, match="AcmeForCausalLM must be one of llama, qwen2, qwen3"):
        write_checkpoint(tmp_path, "AcmeForCausalLM")


def test_a_vocabulary_without_room_for_all_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 259"):
        write_checkpoint(tmp_path, "LlamaForCausalLM", vocab_size=200)


def test_a_vocabulary_with_room_for_all_bytes_and_no_more_will_do(tmp_path):
    write_checkpoint(tmp_path, "LlamaForCausalLM", vocab_size=259)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 259


def test_given_values_replace_the_defaults(tmp_path):
    written = write_checkpoint(
        tmp_path / "a" / "b", "Qwen2ForCausalLM", head_dim=24, hidden_size=32
    )
    assert json.loads((written.folder / "config.json").read_text()) == written.config
    assert (written.config["head_dim"], written.config["hidden_size"]) == (24, 32)
    assert written.weights["model.layers.0.self_attn.q_proj.weight"].shape == (4 * 24, 32)
    assert written.weights["model.layers.0.self_attn.v_proj.bias"].shape == (2 * 24,)
    assert written.num_params == sum(map(torch.numel, written.weights.values()))


def test_the_default_head_dim_divides_the_hidden_size(tmp_path):
    assert write_checkpoint(tmp_path, "LlamaForCausalLM").config["head_dim"] == 64 // 4


@pytest.mark.parametrize(
    ("architecture", "num_norms", "has_bias"),
    [
        ("LlamaForCausalLM", 2, False),
        ("Qwen2ForCausalLM", 2, True),
        ("Qwen3ForCausalLM", 4, False),
        ("Gemma3ForCausalLM", 6, False),
    ],
)
def test_a_layout_has_its_norms_and_biases(architecture, num_norms, has_bias):
    layout = architecture.removesuffix("ForCausalLM").lower()
    sizes = {"tie_word_embeddings": False, "num_hidden_layers": 1, "vocab_size": 300}
    sizes |= dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), 8)
    sizes |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2)
    names = tensor_shapes(layout, sizes)
    assert sum("layers.0" in name and "norm" in name for name in names) == num_norms
    assert any(name.endswith("q_proj.bias") for name in names) == has_bias
    assert not any(name.endswith("o_proj.bias") for name in names)
    assert "lm_head.weight" in names
    assert "lm_head.weight" not in tensor_shapes(layout, sizes | {"tie_word_embeddings": True})


def test_the_eos_token_is_that_of_the_tokenizer(tmp_path):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    named = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokenizer.token_to_id(named["eos_token"]) == written.config["eos_token_id"]
    assert tokenizer.token_to_id(named["pad_token"]) == written.config["pad_token_id"]


def test_shards_hold_the_same_tensors(tmp_path):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM", num_shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(written.weights)
    assert index["metadata"]["total_size"] == 4 * written.num_params
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], written.weights[name])
