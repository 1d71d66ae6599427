"""Adapters in peft's layout: output equal to peft's, and errors for unsupported options."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_parts import add_adapter, peft_logits, peft_model, save_adapter
from model_parts import load_model, random_tokens
from safetensors.torch import load_file, save_file

from quire.errors import AdapterError
from quire.messages import AdapterRef
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.lora.adapter_manager import AdapterManager
from quire_lora.peft_source import PeftSource

TOLERANCE = 1e-4
VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "some": {"target_modules": ["q_proj", "down_proj"], "r": 2},
    "one_layer": {"layers_to_transform": [1]},
    "rslora": {"use_rslora": True, "r": 8},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 32, "layers.1.mlp.up_proj": 1}},
    "alpha_regex": {"alpha_pattern": {r"model\.layers\.[02]\..*_proj": 24}},
    "rank_pattern": {"rank_pattern": {"k_proj": 7, "layers.2.self_attn.o_proj": 1}},
    "both": {"rank_pattern": {"v_proj": 3}, "alpha_pattern": {"v_proj": 5}, "use_rslora": True},
}
ARCHITECTURES = {
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {"num_key_value_heads": 1},
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request, tmp_path_factory):
    """A checkpoint, our model of it, and peft's model with all variants of adapters."""
    folder = tmp_path_factory.mktemp(request.param)
    written = write_checkpoint(folder / "base", request.param, **ARCHITECTURES[request.param])
    model = load_model(written, prepack=True)
    first, *others = VARIANTS
    theirs = peft_model(written, first, **VARIANTS[first])
    for name in others:
        add_adapter(theirs, name, **VARIANTS[name])
    refs = {
        name: AdapterRef(name, str(save_adapter(theirs, name, folder / "adapters")))
        for name in VARIANTS
    }
    return model, AdapterManager(model, PeftSource(), 3, 8), theirs, refs


@pytest.mark.parametrize("name", VARIANTS)
def test_an_adapter_gives_the_output_of_peft(case, name):
    model, manager, theirs, refs = case
    token_ids = random_tokens(30)
    index = manager.load(refs[name])
    ours = logits_of(model, token_ids, adapters=manager.batch([index], [30]))
    base = logits_of(model, token_ids)
    assert difference(ours, peft_logits(theirs, name, token_ids)) < TOLERANCE
    assert difference(base, peft_logits(theirs, name, token_ids)) > 30 * TOLERANCE


def test_different_adapters_and_none_in_one_batch(case):
    """Rows of one dense request attend to each other, so only the first layer's input differs."""
    _, manager, _, refs = case
    layer = manager.targets["model.layers.0.mlp.gate_proj"].layer
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    first, second = (manager.load(refs[name]) for name in ("all", "rslora"))
    mixed = layer(x, manager.batch([first, -1, second, first], [2, 1, 2, 1]))
    alone = [layer(x, manager.batch([index], [6])) for index in (first, second)]
    expected = torch.stack(
        [alone[0][0], alone[0][1], layer(x)[2], alone[1][3], alone[1][4], alone[0][5]]
    )
    torch.testing.assert_close(mixed, expected)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


@pytest.fixture
def adapter(tmp_path) -> Path:
    """A folder with a small adapter in peft's layout."""
    save_file(
        {
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 8),
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(8, 2),
        },
        tmp_path / "adapter_model.safetensors",
    )
    write_config(tmp_path)
    return tmp_path


def write_config(folder: Path, **changes: Any) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_a_module_has_the_name_of_the_checkpoint_and_its_scale(adapter):
    read = PeftSource().read(adapter, 8)
    assert {name: module.scale for name, module in read.modules.items()} == {
        "model.layers.0.self_attn.q_proj": 3.0
    }


def test_the_content_hash_follows_every_file(adapter):
    source = PeftSource()
    before = source.content_hash(adapter)
    assert source.read(adapter, 8).content_hash == before
    write_config(adapter, lora_alpha=7)
    after_config = source.content_hash(adapter)
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({k: v + 1 for k, v in weights.items()}, adapter / "adapter_model.safetensors")
    assert len({before, after_config, source.content_hash(adapter)}) == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_qalora": True}, "use_qalora"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"an_option_of_tomorrow": 1}, "an_option_of_tomorrow"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"alpha_pattern": {"(a*)*b": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {".*.*.*.*b": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {"[": 1}}, "alpha_pattern"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(adapter, changes, named):
    write_config(adapter, **changes)
    with pytest.raises(AdapterError, match=named):
        PeftSource().read(adapter, 8)


@pytest.mark.parametrize(
    "key",
    [
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "model.layers.0.self_attn.k_proj.lora_A.weight",
    ],
)
def test_a_tensor_that_is_no_linear_lora_is_refused_by_name(adapter, key):
    file = adapter / "adapter_model.safetensors"
    save_file({**load_file(file), key: torch.ones(2, 8)}, file)
    with pytest.raises(AdapterError, match=key):
        PeftSource().read(adapter, 8)


def test_a_rank_over_the_limit_is_refused(adapter):
    with pytest.raises(AdapterError, match="max_lora_rank is 1"):
        PeftSource().read(adapter, 1)


def test_an_incomplete_pair_is_refused(adapter):
    file = adapter / "adapter_model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "lora_A" in k}, file)
    with pytest.raises(AdapterError, match="no lora_B"):
        PeftSource().read(adapter, 8)


def test_a_truncated_file_is_an_error_that_names_it(adapter):
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors is damaged"):
        PeftSource().read(adapter, 8)


def test_a_pickle_is_refused_and_not_opened(adapter):
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(AdapterError, match="can run code"):
        PeftSource().read(adapter, 8)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_broken_config_is_refused(adapter, text):
    (adapter / "adapter_config.json").write_text(text)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        PeftSource().read(adapter, 8)


def test_a_folder_is_found_by_its_path(adapter):
    assert PeftSource().resolve(str(adapter)) == adapter.resolve()


@pytest.mark.parametrize("name", ["no/such/folder/here", "../secret", "~nobody", "nothing"])
def test_a_name_that_is_no_folder_and_no_hub_id_is_refused(name):
    with pytest.raises(AdapterError, match="no adapter folder"):
        PeftSource().resolve(name)


def test_a_hub_id_that_is_not_in_the_cache_is_an_adapter_error(tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(AdapterError, match="nobody/nothing"):
        PeftSource().resolve("nobody/nothing@main")
