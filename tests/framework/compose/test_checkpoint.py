import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf_files import write_gguf
from installed import sites

from quire.compose.checkpoint import (
    MAX_CONFIG_BYTES,
    Checkpoint,
    config_bytes,
    find_checkpoint,
    read_config,
    weight_paths,
)
from quire.config import ModelSettings
from quire.errors import CheckpointCorruptError, CheckpointNotFoundError, ContestedNameError
from quire.launch.agreement import checkpoint_digest
from quire.plugins.loading import load_plugins

site = pytest.fixture(sites)

CONFIG = {"architectures": ["AcmeForCausalLM"], "hidden_size": 8}


@pytest.fixture(scope="module")
def shipped():
    return load_plugins().registries.checkpoints


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def find(name, shipped, revision=None, **options):
    return find_checkpoint(ModelSettings(model=str(name), revision=revision), shipped, **options)


def test_a_folder_is_found(folder, shipped):
    checkpoint = find(folder, shipped)
    assert checkpoint.folder == folder
    assert checkpoint.architecture == "AcmeForCausalLM"
    assert checkpoint.adapters == {}
    assert checkpoint.entry is None


def test_a_folder_in_the_home_directory_is_found(folder, shipped, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find(f"~/{folder.name}", shipped).config == CONFIG


SHIPS = """
    from quire import hookimpl

    @hookimpl
    def register_checkpoints(registry):
        registry.add("{name}", "{module}:ship")

    def ship():
        raise RuntimeError("the plugin's")
"""


def test_quires_own_checkpoint_is_found_though_a_third_party_offers_its_name(site):
    site.install("acme", SHIPS.format(name="demo", module="acme"))
    checkpoint = find("demo", load_plugins().registries.checkpoints)
    assert checkpoint.architecture == "Qwen3ForCausalLM"
    assert checkpoint.entry.source.plugin == "quire_demo"
    assert [source.plugin for source in checkpoint.entry.passed_over] == ["acme"]


def test_a_checkpoint_that_two_third_parties_ship_is_contested_when_it_is_named(site):
    for name in ("acme", "other"):
        site.install(name, SHIPS.format(name="tiny", module=name))
    shipped = load_plugins().registries.checkpoints
    assert find("demo", shipped).entry.passed_over == ()
    with pytest.raises(ContestedNameError, match="checkpoint 'tiny' is offered by acme"):
        find("tiny", shipped)


def test_a_shipped_name_stands_for_a_folder_in_a_package(shipped):
    checkpoint = find("demo", shipped)
    assert checkpoint.name == "demo"
    assert checkpoint.architecture == "Qwen3ForCausalLM"
    assert (checkpoint.folder / "model.safetensors").is_file()


def test_a_folder_counts_more_than_a_shipped_name(shipped, tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert find("demo", shipped).config == CONFIG


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "~/nowhere", "a/b/c", "x" * 5000])
def test_a_path_that_does_not_exist_is_an_error_quickly_and_offline(name, shipped, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointNotFoundError) as caught:
        find(name, shipped)
    assert name[:50] in str(caught.value)


def test_a_file_instead_of_a_folder_is_refused_with_the_way_out(folder, shipped):
    with pytest.raises(CheckpointNotFoundError, match="not a GGUF file; give the folder"):
        find(folder / "config.json", shipped)


GGUF = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 1,
    **{f"qwen3.{key}": 8 for key in ("context_length", "embedding_length")},
    **{f"qwen3.{key}": 4 for key in ("feed_forward_length", "attention.head_count")},
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
}


@pytest.fixture
def gguf(tmp_path):
    return write_gguf(tmp_path / "m.gguf", GGUF, {"token_embd.weight": np.zeros((4, 8))})


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_a_gguf_file_is_a_checkpoint_whatever_its_name(gguf, shipped, name):
    file = gguf.rename(gguf.with_name(name))
    checkpoint = find(file, shipped)
    assert (checkpoint.folder, checkpoint.architecture) == (file, "Qwen3ForCausalLM")
    assert weight_paths(file) == [file]
    assert json.loads(config_bytes(file)) == checkpoint.config


def test_a_missing_gguf_file_names_one_of_a_similar_name(gguf, shipped):
    with pytest.raises(
        CheckpointNotFoundError, match=r"no such GGUF file: .*did you mean .*m\.gguf"
    ):
        find(gguf.with_name("mm.gguf"), shipped)


def test_a_folder_of_gguf_files_names_one(gguf, shipped):
    with pytest.raises(CheckpointCorruptError, match=r"give the path of one: .*m\.gguf"):
        find(gguf.parent, shipped)


def test_the_digest_of_a_gguf_file_is_of_its_header(gguf):
    before = checkpoint_digest(gguf)
    assert checkpoint_digest(gguf) == before
    tensors = {"token_embd.weight": np.ones((4, 8))}
    assert checkpoint_digest(write_gguf(gguf, GGUF, tensors)) == before
    assert checkpoint_digest(write_gguf(gguf, GGUF | {"general.name": "x"}, tensors)) != before


def test_a_hub_id_offline_is_a_typed_error_soon():
    code = (
        "from quire.compose.checkpoint import find_checkpoint\n"
        "from quire.config import ModelSettings\n"
        "from quire.errors import CheckpointNotFoundError\n"
        "from quire.plugins.loading import load_plugins\n"
        "try:\n"
        "    shipped = load_plugins().registries.checkpoints\n"
        "    find_checkpoint(ModelSettings(model='acme/none'), shipped)\n"
        "except CheckpointNotFoundError as error: print(error)\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "there is no model 'acme/none'\n" in done.stdout
    assert "It is no checkpoint that a plugin ships: there is demo.\n" in done.stdout
    assert time.monotonic() - started < 20


def test_a_name_that_the_hub_cannot_have_is_the_same_typed_error(shipped):
    with pytest.raises(CheckpointNotFoundError, match="download from the Hugging Face hub failed"):
        find("acme--none..", shipped)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must contain a JSON object"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not JSON"),
    ],
)
def test_a_broken_config_is_an_error_with_its_path(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointCorruptError, match=message) as caught:
        read_config(tmp_path)
    assert str(path) in str(caught.value)


def test_a_folder_without_a_config_may_be_incomplete(tmp_path):
    with pytest.raises(CheckpointCorruptError, match=r"has no config.json; is the folder complete"):
        read_config(tmp_path)


def test_an_enormous_config_is_not_read(tmp_path):
    (tmp_path / "config.json").write_text(" " * (4 * 2**20 + 1))
    with pytest.raises(CheckpointCorruptError, match="larger than"):
        read_config(tmp_path)


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3], {}])
def test_a_config_must_name_its_architecture(architectures):
    checkpoint = Checkpoint("m", Path("m"), {"architectures": architectures})
    with pytest.raises(CheckpointCorruptError, match="names no architecture"):
        _ = checkpoint.architecture


def test_a_folder_that_is_no_checkpoint_does_not_hide_a_shipped_one(shipped, tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find("demo", shipped).config["architectures"] == ["Qwen3ForCausalLM"]
    with pytest.raises(CheckpointCorruptError, match="no config"):
        find("./demo", shipped)


def test_a_config_of_just_the_largest_size_is_read(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG).ljust(MAX_CONFIG_BYTES))
    assert read_config(folder) == CONFIG
    path.write_text(json.dumps(CONFIG).ljust(MAX_CONFIG_BYTES + 1))
    with pytest.raises(CheckpointCorruptError, match="is larger than"):
        read_config(folder)


@pytest.mark.parametrize("name", ["a/b/c", "a\\b", "./nowhere", "../nowhere", "/no/such/place"])
def test_a_path_is_never_asked_of_the_hub(name, shipped):
    with pytest.raises(CheckpointNotFoundError, match=r"^no such model folder: "):
        find(name, shipped)
