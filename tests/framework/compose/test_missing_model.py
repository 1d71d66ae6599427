"""The error of a model that is nowhere."""

import pytest
from huggingface_hub import constants

from quire.compose.missing_model import missing_model, missing_path
from quire.errors import CheckpointNotFoundError

HUB_ERROR = CheckpointNotFoundError("the hub has no such model")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))
    return tmp_path


def lines(name, shipped=("demo",)):
    return str(missing_model(name, shipped, HUB_ERROR)).splitlines()


def test_all_places_are_named_in_four_lines(here):
    assert lines("nosuchmodel") == [
        "there is no model 'nosuchmodel'",
        "  It is no checkpoint that a plugin ships: there is demo.",
        f"  It is no folder: {here}/nosuchmodel does not exist.",
        "  As the id of a model on a hub: the hub has no such model.",
    ]


def test_a_shipped_name_is_suggested():
    assert lines("dmeo")[0] == "there is no model 'dmeo'; did you mean 'demo'?"


def test_a_folder_is_suggested(here):
    (here / "my-model").mkdir()
    (here / "my-modek.txt").touch()
    assert lines("my-modl")[0].endswith("; did you mean 'my-model'?")


def test_a_model_of_the_cache_is_suggested_by_its_id(here, monkeypatch):
    (here / "models--Qwen--Qwen3-0.6B").mkdir()
    (here / "version.txt").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here))
    assert lines("Qwen/Qwen3-06B")[0].endswith("; did you mean 'Qwen/Qwen3-0.6B'?")


def test_shipped_checkpoints_are_listed_if_they_are_few():
    assert lines("x", [])[1].endswith(": there is none.")
    assert lines("x", ["a", "b"])[1].endswith(": there is a, b.")
    assert lines("x", "abcdef")[1].endswith(": 6 names, see `quire plugins list`.")


def test_a_name_of_any_length_is_one_line():
    assert len(lines("x" * 10_000)[0]) < 300


@pytest.mark.parametrize("name", ["./qwen", "./none/qwen"])
def test_a_path_is_one_line(name):
    assert str(missing_path(name)) == f"no such model folder: {name}"


def test_a_path_has_its_neighbour_suggested(here):
    (here / "models" / "qwen3").mkdir(parents=True)
    error = str(missing_path("./models/qwn3"))
    assert error == "no such model folder: ./models/qwn3; did you mean 'models/qwen3'?"
