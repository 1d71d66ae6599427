"""GGUF files run: they generate, chat and are explained as the same model in a folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_checkpoints import (
    byte_level_metadata,
    folder_as_gguf,
    model_metadata,
    model_tensors,
    plain,
)
from gguf_families import CASES, write_case
from gguf_files import Blocks, Number, write_gguf
from safetensors.torch import load_file

import quire_demo
from quire import LLM, SamplingParams
from quire.cli.main import main
from quire.errors import CheckpointNotFoundError, UnsupportedModelError
from quire.sampling_params import StructuredOutputsParams

DEMO = Path(quire_demo.__file__).parent / "checkpoint"
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": ids} for ids in ([5, 300, 42, 17], [9, 8, 7])]
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """The demo model as a GGUF file."""
    return folder_as_gguf(DEMO, tmp_path_factory.mktemp("gguf") / "demo.gguf")


def q8_0(name, tensor):
    """Store a matrix in blocks of eight bits."""
    del name
    groups = tensor.float().numpy().reshape(-1, 32)
    scales = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(groups / np.maximum(scales.astype(np.float32), 1e-8)).astype(np.int8)
    data = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1)
    return Blocks(data, 8, tuple(tensor.shape))


def blocks_of_eight_bits(name, tensor):
    """Store what is no norm in blocks of eight bits."""
    return plain(name, tensor) if "norm" in name else q8_0(name, tensor)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    """The demo model in blocks of eight bits."""
    return folder_as_gguf(DEMO, tmp_path_factory.mktemp("gguf") / "demo-q8.gguf", store=q8_0)


def generated(model, **options) -> list[list[int]]:
    with LLM(str(model), num_kv_blocks=64, max_model_len=256, **options) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def test_a_file_generates_and_chats_as_its_folder_does(file):
    with LLM(str(file), num_kv_blocks=64, max_model_len=256) as llm:
        ours = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]
        (answer,) = llm.chat(CHAT, GREEDY)
        choice = StructuredOutputsParams(choice=["yes it is", "no"])
        (chosen,) = llm.generate("well", SamplingParams(structured_outputs=choice, max_tokens=20))
    assert ours == generated("demo")
    assert answer.outputs[0].text.startswith("Hello!")
    assert chosen.outputs[0].text in choice.choice


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_ranks_share_the_blocks_of_one_file(narrow, sizes):
    assert generated(narrow, dtype="float32", **sizes) == generated(narrow, dtype="float32")


@pytest.mark.parametrize("name", ["mixtral", "phi3", "gemma2"])
def test_ranks_share_stacks_and_fused_matrices(tmp_path, name):
    pytest.importorskip("gguf")
    file, written = write_case(tmp_path, CASES[name], store=blocks_of_eight_bits)
    options = {"tokenizer": str(written.folder), "dtype": "float32"}
    assert generated(file, **options, tensor_parallel_size=2) == generated(file, **options)


def test_a_set_of_files_is_one_model(tmp_path, file):
    weights, config = (
        load_file(DEMO / "model.safetensors"),
        json.loads((DEMO / "config.json").read_text()),
    )
    tensors = list(model_tensors(weights, config).items())
    metadata = model_metadata(config) | byte_level_metadata(DEMO, "qwen2", config["vocab_size"])
    for number, part in enumerate((tensors[::2], tensors[1::2])):
        own = {"split.no": Number(number, "H"), "split.count": Number(2, "H")}
        name = f"demo-{number + 1:05}-of-00002.gguf"
        write_gguf(tmp_path / name, (metadata if number == 0 else {}) | own, dict(part))
    assert generated(tmp_path / "demo-00001-of-00002.gguf") == generated(file)


def test_the_tokenizer_of_another_checkpoint_may_be_used(tmp_path, file):
    unknown = folder_as_gguf(DEMO, tmp_path / "demo.gguf", pre="demo")
    with pytest.raises(UnsupportedModelError, match=r"pre-tokenizer 'demo'.*--tokenizer"):
        generated(unknown)
    assert generated(unknown, tokenizer="demo") == generated(file)
    with LLM("demo", tokenizer=str(file), num_kv_blocks=64, max_model_len=256) as llm:
        assert llm.chat(CHAT, GREEDY)[0].outputs[0].text.startswith("Hello!")


def test_explain_says_that_blocks_are_dequantized(narrow, file, capsys):
    assert main(["explain", str(narrow), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert "gguf" in facts["weights"]
    assert facts["folder"] == str(narrow)
    assert {"kind": "quantizations", "name": "gguf"}.items() <= next(
        part for part in facts["parts"] if part["name"] == "gguf"
    ).items()
    assert facts["gguf"].startswith("architecture qwen3, ")
    assert "Q8_0 9" in facts["gguf"]
    assert main(["explain", str(file), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "gguf" not in plain["weights"]
    assert plain["gguf"].endswith(": F32 100.0%")
    assert main(["explain", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gguf"] is None


def test_what_the_model_cannot_have_is_named_by_the_keys_of_the_file(tmp_path, capsys):
    file = folder_as_gguf(DEMO, tmp_path / "demo.gguf", **{"qwen3.attention.head_count_kv": 4})
    assert main(["explain", str(file)]) == 1
    shown = capsys.readouterr().err
    assert "must be a multiple of num_key_value_heads (4)" in shown
    assert "num_key_value_heads is qwen3.attention.head_count_kv" in shown
    assert "num_attention_heads is qwen3.attention.head_count," in shown


def test_a_file_runs_from_the_command_line(narrow, capsys):
    options = ["--max-tokens", "8", "--temperature", "0", "--num-kv-blocks", "64"]
    assert main(["run", str(narrow), "hi", *options]) == 0
    assert capsys.readouterr().out.startswith("Hello!")


def test_blocks_are_not_rounded_twice(narrow, capsys):
    assert main(["explain", str(narrow), "--quantization", "int8"]) == 1
    assert "would be rounded twice" in capsys.readouterr().err
    assert len(generated(narrow, quantization="none")[0]) == GREEDY.max_tokens


def test_what_is_no_gguf_file_is_named(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none.gguf")]) == 1
    assert "no such GGUF file" in capsys.readouterr().err
    (tmp_path / "bad.gguf").write_bytes(b"{}" * 20)
    assert main(["explain", str(tmp_path / "bad.gguf")]) == 1
    assert "is damaged: it begins with" in capsys.readouterr().err
    (tmp_path / "model.bin").write_bytes(b"{}")
    with pytest.raises(CheckpointNotFoundError, match="is a file, and not a GGUF file"):
        generated(tmp_path / "model.bin")
