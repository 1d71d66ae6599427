"""An adapter that names another base model is logged once, or refused."""

import logging
from pathlib import Path

import pytest

from quire.compose.checkpoint import Checkpoint
from quire.errors import AdapterError
from quire.messages import AdapterRef
from quire.worker.lora.base_model_check import BaseModel, names_of

HUB = "/data/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d8"
REF = AdapterRef("pirate", "/adapters/pirate", "hash")


def names(name="demo", folder="/models/demo", **config):
    return names_of(Checkpoint(name, Path(folder), config))


@pytest.mark.parametrize(
    ("served", "base_model"),
    [
        (names("Qwen/Qwen3-0.6B", HUB), "Qwen/Qwen3-0.6B"),
        (names("Qwen/Qwen3-0.6B", HUB), "qwen/qwen3-0.6b"),
        (names("Qwen/Qwen3-0.6B", HUB), "/data/me/models/Qwen3-0.6B/"),
        (names("Qwen/Qwen3-0.6B", HUB), "C:\\models\\Qwen3-0.6B"),
        (names("./Qwen3-0.6B", "Qwen3-0.6B"), "unsloth/Qwen3-0.6B"),
        (names(HUB, HUB), "Qwen/Qwen3-0.6B"),
        (names("./mine", "mine", _name_or_path="Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B"),
        (names("Qwen/Qwen3-0.6B", HUB), HUB),
        (names(".", "/models/Qwen3-0.6B"), "Qwen/Qwen3-0.6B"),
        (names(), "demo"),
        (names(), None),
        (names(), ""),
        (names(), " "),
        (names(), "."),
        (names(), "../"),
    ],
)
def test_one_model_under_two_names_is_one(caplog, served, base_model):
    BaseModel(served, is_strict=True).check(REF, base_model)
    BaseModel(served, is_strict=False).check(REF, base_model)
    assert not caplog.records


@pytest.mark.parametrize(
    "base_model", ["Qwen/Qwen3-0.6B-Base", "Qwen/Qwen3", "meta-llama/Llama-3.1-8B", "demo/other"]
)
def test_another_model_is_a_warning_once_or_an_error(caplog, base_model):
    base = BaseModel(names("Qwen/Qwen3-0.6B", HUB), is_strict=False)
    with caplog.at_level(logging.WARNING):
        base.check(REF, base_model)
        base.check(REF, base_model)
    (record,) = caplog.records
    assert "'pirate' was made for the base model" in record.getMessage()
    assert base_model in record.getMessage()
    assert "--strict-adapters" in record.getMessage()
    base.check(AdapterRef("other", "x", "y"), base_model)
    assert len(caplog.records) == 2
    strict = BaseModel(names("Qwen/Qwen3-0.6B", HUB), is_strict=True)
    with pytest.raises(
        AdapterError, match=r"'pirate' was made .* served model is 'Qwen/Qwen3-0\.6B'"
    ):
        strict.check(REF, base_model)


def test_a_model_without_any_name_is_not_compared_to_nothing():
    assert names_of(Checkpoint(".", Path("/"), {"_name_or_path": ""})) == []
