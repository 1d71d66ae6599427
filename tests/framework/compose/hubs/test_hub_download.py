"""The files of a checkpoint are chosen by its index, else by their names; the hub is a switch."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf_files import gguf_bytes

from quire.compose.checkpoint import find_checkpoint
from quire.compose.hubs.hub_download import download, weight_names
from quire.config import ModelSettings
from quire.errors import CheckpointNotFoundError
from quire.plugins.loading import load_plugins


def names(tmp_path: Path, *files: str) -> list[str]:
    return weight_names(tmp_path, lambda: ["config.json", "nested/model.safetensors", *files])


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "other.safetensors"], ["consolidated.safetensors"]),
        (
            ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors",
             "consolidated-00001-of-00001.safetensors"],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (["consolidated-00001-of-00001.safetensors"], ["consolidated-00001-of-00001.safetensors"]),
        (["pytorch_model.bin"], []),
    ],
)  # fmt: skip
def test_without_an_index_one_layout_is_chosen(tmp_path, files, chosen):
    assert names(tmp_path, *files) == chosen


def test_of_gguf_files_one_has_to_be_named(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match=r"such as /a\.gguf: a\.gguf, b\.gguf"):
        names(tmp_path, "b.gguf", "a.gguf", "README.md")


def test_an_index_decides_and_files_outside_it_are_ignored(tmp_path):
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "../x"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert names(tmp_path, "model.safetensors") == ["model-1.safetensors", "model-2.safetensors"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_left_to_the_loader(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert names(tmp_path, "model.safetensors") == []


@pytest.fixture
def modelscope(tmp_path, monkeypatch):
    """A package with the functions of ModelScope's client that are called."""
    asked: list[tuple] = []
    repository = {"config.json": "{}", "model.safetensors": "w", "other.bin": "x"}
    package, hub, api = (
        ModuleType(n) for n in ("modelscope", "modelscope.hub", "modelscope.hub.api")
    )

    def snapshot_download(model_id, revision="master", *, allow_patterns, ignore_patterns):
        asked.append((model_id, revision, tuple(allow_patterns)))
        for name, text in repository.items():
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                (tmp_path / name).write_text(text)
        return str(tmp_path)

    class HubApi:
        def get_model_files(self, model_id, revision=None, recursive=False):
            return [{"Path": name, "Type": "blob"} for name in repository]

    package.snapshot_download, api.HubApi = snapshot_download, HubApi
    for module in (package, hub, api):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_modelscope_is_asked_for_the_same_files(modelscope, tmp_path):
    folder = download("acme/tiny", "v2", with_weights=True, from_modelscope=True)
    assert folder == tmp_path
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert {(name, revision) for name, revision, _ in modelscope} == {("acme/tiny", "v2")}
    assert modelscope[-1][2] == ("model.safetensors",)


def test_the_switch_is_an_option(modelscope, tmp_path):
    shipped = load_plugins().registries.checkpoints
    settings = ModelSettings(model="acme/tiny", use_modelscope=True)
    assert find_checkpoint(settings, shipped).folder == tmp_path
    assert modelscope[0][1] == "master"


GGUF = gguf_bytes(
    {
        "general.architecture": "qwen3",
        "qwen3.block_count": 1,
        **{f"qwen3.{key}": 8 for key in ("context_length", "embedding_length")},
        **{f"qwen3.{key}": 4 for key in ("feed_forward_length", "attention.head_count")},
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    },
    {"token_embd.weight": np.zeros((4, 8))},
)


@pytest.mark.parametrize("with_weights", [True, False])
def test_a_gguf_file_of_a_model_is_all_that_is_needed(modelscope, tmp_path, with_weights):
    (tmp_path / "m-Q8_0.gguf").write_bytes(GGUF)
    shipped = load_plugins().registries.checkpoints
    settings = ModelSettings(model="acme/tiny/m-Q8_0.gguf", use_modelscope=True)
    found = find_checkpoint(settings, shipped, with_weights)
    assert (found.folder, found.architecture) == (tmp_path / "m-Q8_0.gguf", "Qwen3ForCausalLM")
    assert [asked[0] for asked in modelscope] == ["acme/tiny"] * 2
    assert modelscope[-1][2] == ("m-Q8_0.gguf",)


def test_all_files_of_a_set_are_downloaded(modelscope):
    download("acme/tiny", None, with_weights=True, from_modelscope=True,
             gguf="m-00001-of-00002.gguf")  # fmt: skip
    assert modelscope[-1][2] == ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")


@pytest.mark.parametrize(
    "name", ["./a/b.gguf", "a/b/c/d.gguf", "/a/b/c.gguf", "a/b/*.gguf", "b.gguf", "a/b.gguf"]
)
def test_other_names_of_gguf_files_are_paths(modelscope, name):
    with pytest.raises(CheckpointNotFoundError, match="no such GGUF file"):
        find_checkpoint(ModelSettings(model=name), load_plugins().registries.checkpoints)
    assert modelscope == []


def test_a_client_that_is_not_installed_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(CheckpointNotFoundError, match=r"ModelScope failed.*pip install modelscope"):
        download("acme/tiny", None, with_weights=True, from_modelscope=True)
