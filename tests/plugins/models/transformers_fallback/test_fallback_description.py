"""Descriptions of models that run through transformers, and code that a checkpoint brings."""

import json
from pathlib import Path

import pytest
from transformers_families import FAMILIES, tiny_config, write_family

from quire import LLM, SamplingParams
from quire.errors import UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer
from quire.testing.torch_imports import imports_torch
from quire_models.transformers_fallback.fallback_description import describe_by_transformers

ACME_CODE = """
from pathlib import Path

from transformers import LlamaForCausalLM

Path(__file__).with_name("imported").touch()
Path({marker!r}).touch()


class AcmeForCausalLM(LlamaForCausalLM):
    pass
"""


def config_of(model_type, architecture, **values):
    config = tiny_config(model_type, **{**FAMILIES[model_type], **values}).to_dict()
    as_written = json.loads(json.dumps(config, default=str))
    return {**as_written, "architectures": [architecture]}


def test_describing_loads_no_torch_in_this_process():
    config = config_of("gemma2", "Gemma2ForCausalLM")
    code = (
        "import json; from quire_models.transformers_fallback.fallback_description import *; "
        "found = describe_by_transformers(json.loads(sys.argv[1])); "
        "assert found.num_layers == 4 and found.kv_layers[0].param('window') == 7"
    )
    assert not imports_torch(code, json.dumps(config))


def test_the_description_has_what_planning_needs():
    found = describe_by_transformers(config_of("gpt_oss", "GptOssForCausalLM", dtype="bfloat16"))
    assert found.kv_layers[:2] == (
        KVLayer(
            "model.layers.0.self_attn.paged_attention", "sliding_window", 2, 24,
            params=(("window", 7),), has_sinks=True, layer_index=0,
        ),
        KVLayer(
            "model.layers.1.self_attn.paged_attention", "full_attention", 2, 24,
            has_sinks=True, layer_index=1,
        ),
    )  # fmt: skip
    assert (found.vocab_size, found.hidden_size, found.num_heads) == (320, 64, 4)
    assert (found.max_model_len, found.num_layers) == (256, 4)
    assert found.checkpoint_dtype == "bfloat16"
    assert not found.has_tied_head


def test_soft_caps_and_tied_heads_are_described():
    found = describe_by_transformers(config_of("gemma2", "Gemma2ForCausalLM"))
    assert found.logit_soft_cap == 5.0
    assert found.has_tied_head


def test_a_config_without_a_model_type_is_refused_at_once():
    with pytest.raises(UnsupportedModelError, match="no model_type"):
        describe_by_transformers({"architectures": ["AcmeForCausalLM"]})


@pytest.fixture
def acme(tmp_path: Path):
    """A checkpoint with code of its own, and the file that this code writes if it is run."""
    family = write_family(tmp_path / "acme", "llama")
    marker = tmp_path / "ran"
    code = ACME_CODE.format(marker=str(marker))
    (family.folder / "modeling_acme.py").write_text(code)
    file = family.folder / "config.json"
    config = json.loads(file.read_text())
    config["architectures"] = ["AcmeForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM"}
    file.write_text(json.dumps(config))
    return family, marker


def test_code_of_a_checkpoint_is_not_run_unless_it_is_trusted(acme):
    family, marker = acme
    with pytest.raises(UnsupportedModelError, match="only --trust-remote-code runs"):
        LLM(str(family.folder), dtype="float32")
    assert not marker.exists()


def test_an_architecture_of_transformers_runs_without_the_checkpoints_code(acme):
    family, marker = acme
    file = family.folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    with LLM(str(family.folder), dtype="float32", model_impl="transformers") as llm:
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=1))
    assert not marker.exists()


def test_trusted_code_runs(acme, monkeypatch, tmp_path):
    family, marker = acme
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompt = [5, 200, 17, 33]
    with LLM(str(family.folder), dtype="float32", trust_remote_code=True) as llm:
        (output,) = llm.generate([prompt], params)
    assert marker.exists()
    token_ids = list(output.outputs[0].token_ids)
    expected = family.logprobs([*prompt, *token_ids[:-1]])[len(prompt) - 1 :]
    assert expected.argmax(-1).tolist() == token_ids


def test_code_that_cannot_be_imported_is_refused_with_the_cause(acme):
    family, _ = acme
    (family.folder / "modeling_acme.py").write_text("import no_such_module_of_acme\n")
    with pytest.raises(UnsupportedModelError, match="no_such_module_of_acme"):
        LLM(str(family.folder), dtype="float32", trust_remote_code=True)


@pytest.mark.parametrize("trusts", [False, True])
def test_code_of_another_model_is_refused_with_its_name_and_the_way_out(acme, trusts):
    """Nothing pins its revision, so not even trust in this checkpoint lets it run."""
    family, marker = acme
    file = family.folder / "config.json"
    remote = {"AutoModelForCausalLM": "other/model--modeling_acme.AcmeForCausalLM"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "auto_map": remote}))
    reason = "code is that of another model, other/model" if trusts else "--trust-remote-code"
    with pytest.raises(UnsupportedModelError, match=reason):
        LLM(str(family.folder), dtype="float32", trust_remote_code=trusts)
    assert not marker.exists()
