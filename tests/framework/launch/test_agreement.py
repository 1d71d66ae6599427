"""Agreement of processes: what each of them chose, and every difference at once."""

import json
import os
from pathlib import Path

import pytest

import quire
from quire.config import Settings
from quire.launch.agreement import checkpoint_digest, difference, own_choices
from quire.launch.composing import compose_engine
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

NAMES = ("the engine on a", "rank 1 on b")


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "model", "LlamaForCausalLM").folder


def composition_of(folder, **options):
    settings = Settings.from_options({"model": str(folder)} | options)
    return compose_engine(settings, load_plugins(settings.plugins)).composition


def test_processes_that_chose_alike_have_no_difference():
    assert difference(["a", "b"], ["a", "b"], NAMES) is None
    assert difference([], [], NAMES) is None


def test_a_difference_has_every_line_that_differs_and_both_names():
    text = difference(["quire 1", "torch 2", "same"], ["quire 2", "torch 2", "same", "x"], NAMES)
    assert text.splitlines()[:2] == ["--- the engine on a", "+++ rank 1 on b"]
    changed = [line for line in text.splitlines()[2:] if not line.startswith("@@")]
    assert changed == ["-quire 1", "+quire 2", "+x"]


def test_the_order_of_choices_is_a_difference():
    assert difference(["a", "b"], ["b", "a"], NAMES) is not None


def test_on_one_machine_folders_are_compared(folder):
    lines = own_choices(composition_of(folder))
    assert f"quire {quire.__version__} in {Path(quire.__file__).parent}" in lines
    assert f"checkpoint {folder}" in lines


def test_on_two_machines_contents_are_compared_and_no_folders(folder):
    lines = own_choices(composition_of(folder), is_local=False)
    assert f"quire {quire.__version__}" in lines
    assert f"checkpoint {folder.name} with content {checkpoint_digest(folder)}" in lines
    assert not any(str(folder.parent) in line for line in lines)


@pytest.mark.parametrize("is_local", [True, False])
def test_what_computes_otherwise_is_another_choice(folder, is_local):
    lines = own_choices(composition_of(folder), is_local=is_local)
    others = own_choices(composition_of(folder, dtype="bfloat16"), is_local=is_local)
    text = difference(lines, others, NAMES)
    assert "float32" in text
    assert "bfloat16" in text


@pytest.mark.parametrize("is_local", [True, False])
def test_versions_of_python_and_torch_are_choices(folder, is_local):
    lines = own_choices(composition_of(folder), is_local=is_local)
    assert [line.split()[0] for line in lines[:4]] == ["quire", "Python", "torch", "checkpoint"]


def weights_of(folder):
    return next(folder.glob("*.safetensors"))


def rename_a_tensor(folder):
    path = weights_of(folder)
    data = path.read_bytes()
    assert data.count(b"model.norm.weight") == 1
    path.write_bytes(data.replace(b"model.norm.weight", b"model.morn.weight"))


def lose_the_end(folder):
    path = weights_of(folder)
    os.truncate(path, path.stat().st_size - 4)


def rename_the_file(folder):
    weights_of(folder).rename(folder / "model-00001.safetensors")


def change_the_config(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 5.0}))


@pytest.mark.parametrize(
    "change", [rename_a_tensor, lose_the_end, rename_the_file, change_the_config]
)
def test_another_checkpoint_has_another_digest(folder, change):
    before = checkpoint_digest(folder)
    assert checkpoint_digest(folder) == before
    change(folder)
    assert checkpoint_digest(folder) != before


def test_the_same_checkpoint_in_another_folder_has_the_same_digest(folder):
    before = checkpoint_digest(folder)
    assert checkpoint_digest(folder.rename(folder.parent / "elsewhere")) == before


def test_a_header_that_claims_to_be_huge_is_read_to_the_end_of_the_file(folder):
    path = weights_of(folder)
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    assert checkpoint_digest(folder)
