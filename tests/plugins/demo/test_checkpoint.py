"""The files of the demo checkpoint are small, complete and a Qwen3 model."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from recipe.adapters import STYLES
from recipe.template import CHECKPOINT

ADAPTERS = CHECKPOINT.parent / "adapters"


def _json(path):
    return json.loads(path.read_text("utf-8"))


def test_the_weights_are_at_most_eight_megabytes():
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 8_000_000


def test_the_config_says_qwen3_in_float32():
    config = _json(CHECKPOINT / "config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert config["torch_dtype"] == "float32"
    assert config["tie_word_embeddings"] is True


def test_the_tokenizer_fits_the_model():
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    config, generation = (
        _json(CHECKPOINT / "config.json"),
        _json(CHECKPOINT / "generation_config.json"),
    )
    assert tokenizer.get_vocab_size() <= config["vocab_size"]
    assert tokenizer.token_to_id("<|im_end|>") in generation["eos_token_id"]
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]


def test_every_weight_is_float32():
    with safe_open(CHECKPOINT / "model.safetensors", "np") as weights:
        names = list(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"F32"}


@pytest.mark.parametrize("style", sorted(STYLES))
def test_an_adapter_is_small_and_names_the_demo_as_its_base(style):
    config = _json(ADAPTERS / style / "adapter_config.json")
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "demo"
    assert len(config["target_modules"]) == 7
    assert (ADAPTERS / style / "adapter_model.safetensors").stat().st_size < 1_000_000


def test_the_page_shows_the_measured_results():
    results = CHECKPOINT.parents[1] / "recipe" / "RESULTS.md"
    page = CHECKPOINT.parents[3] / "docs" / "demo.md"
    rows = [line for line in results.read_text("utf-8").splitlines() if line.startswith("|")]
    assert set(rows) <= set(page.read_text("utf-8").splitlines())
