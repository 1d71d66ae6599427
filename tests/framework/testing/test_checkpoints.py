"""The checkpoints that tests are made of: repeatable, random in every parameter, and varied."""

import json

import pytest
import torch
from model_parts import greedy, load_model, random_tokens
from safetensors.torch import load_file
from tokenizers import Tokenizer

from quire.testing.checkpoints import write_checkpoint

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


def test_a_strangers_architecture_says_which_layout_it_has(tmp_path):
    written = write_checkpoint(tmp_path, "AcmeForCausalLM", layout="qwen2")
    assert written.config["architectures"] == ["AcmeForCausalLM"]
    assert "model.layers.0.self_attn.q_proj.bias" in written.weights


def test_an_unknown_layout_is_refused(tmp_path):
    with pytest.raises(ValueError, match="AcmeForCausalLM must be one of llama, qwen2, qwen3"):
        write_checkpoint(tmp_path, "AcmeForCausalLM")


def test_a_vocabulary_without_room_for_all_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 259"):
        write_checkpoint(tmp_path, "LlamaForCausalLM", vocab_size=200)


def test_shards_hold_the_same_tensors(tmp_path):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM", num_shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(written.weights)
    assert index["metadata"]["total_size"] == 4 * written.num_params
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], written.weights[name])
