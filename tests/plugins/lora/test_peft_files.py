"""Files in peft's layout: options that affect the output are read, and errors are reported."""

import json
import os
import struct

import pytest
import torch
from adapter_files import Q_PROJ, write_adapter

from quire.errors import AdapterError
from quire_lora import peft_source
from quire_lora.peft_config import read_config
from quire_lora.peft_source import PeftSource

A, B = f"{Q_PROJ}.lora_A.weight", f"{Q_PROJ}.lora_B.weight"
WEIGHTS = "adapter_model.safetensors"


def read(folder, max_rank=8):
    return PeftSource().read(folder, max_rank)


def scale_of(folder, module, rank, **config):
    return read_config(write_adapter(folder, **config)).scale(module, rank)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((64,), (64, 2), r"lora_A\.weight has shape \[64\]; expected a matrix"),
        ((2, 64), (64,), r"lora_B\.weight has shape \[64\]; expected a matrix"),
        ((), (64, 2), r"lora_A\.weight has shape \[\]; expected a matrix"),
        ((2, 64), (), r"lora_B\.weight has shape \[\]; expected a matrix"),
        ((1, 2, 64), (64, 2), r"shape \[1, 2, 64\]; expected a matrix"),
        ((0, 64), (64, 0), "rank 0"),
        ((9, 64), (64, 9), "rank 9; max_lora_rank is 8"),
        ((2, 64), (64, 9), r"lora_B\.weight has rank 9"),
        ((2, 64), (64, 3), r"have different ranks: shapes \[2, 64\] and \[64, 3\]"),
    ],
)
def test_tensors_that_are_not_a_pair_of_matrices_are_refused_with_their_shapes(
    tmp_path, a, b, words
):
    folder = write_adapter(tmp_path, {A: torch.ones(a), B: torch.ones(b)})
    with pytest.raises(AdapterError, match=words):
        read(folder)


@pytest.mark.parametrize("rank", [1, 8])
def test_every_rank_up_to_the_largest_is_read(tmp_path, rank):
    pair = {A: torch.ones(rank, 3), B: torch.ones(70, rank)}  # more outputs than the largest rank
    (module,) = read(write_adapter(tmp_path, pair)).modules.values()
    assert (len(module.a), module.scale) == (rank, 4 / rank)


@pytest.mark.parametrize("kept", [A, B])
def test_an_incomplete_pair_names_the_missing_matrix(tmp_path, kept):
    shape = (2, 64) if kept == A else (64, 2)
    lacks = "lora_B" if kept == A else "lora_A"
    with pytest.raises(AdapterError, match=f"no {lacks}"):
        read(write_adapter(tmp_path, {kept: torch.ones(shape)}))


def test_a_file_without_tensors_is_no_adapter(tmp_path):
    with pytest.raises(AdapterError, match="has no tensors"):
        read(write_adapter(tmp_path, {}))


@pytest.mark.parametrize("name", [A.removeprefix("base_model.model."), "base_model.model.x.weight"])
def test_tensors_of_another_layout_are_refused_by_name(tmp_path, name):
    folder = write_adapter(tmp_path, {A: torch.ones(2, 64), name: torch.ones(2, 64)})
    with pytest.raises(AdapterError, match=name):
        read(folder)


def as_header(text):
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff" * 100,
        as_header(b"[]"),
        as_header(b'{"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}') + b"\0" * 4,
        as_header(b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}') + b"\0" * 4,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
    ids=["empty", "zeros", "ones", "list", "dtype", "offsets", "lfs"],
)
def test_a_corrupt_file_is_reported_with_its_path_and_reason(tmp_path, content):
    folder = write_adapter(tmp_path)
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors is damaged: .+") as caught:
        read(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_file_that_cannot_be_opened_is_reported_with_its_path(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(peft_source, "safe_open", refuse)
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors cannot be read: .*denied"):
        read(write_adapter(tmp_path))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"lora_alpha": float("-inf")}, "lora_alpha must be a number"),
        ({"lora_alpha": True}, "lora_alpha must be a number"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"q": "1"}}, r"alpha_pattern\['q'\] must be a number"),
        ({"alpha_pattern": {"a*b*c*d*": 1}}, "too complex"),
        ({"alpha_pattern": {"(ab)+": 1}}, "too complex"),
        ({"alpha_pattern": {"[": 1}}, "not a regular expression"),
        ({"init_lora_weights": "pissa"}, "changes the base model too"),
        ({"init_lora_weights": {"a": 1}}, "changes the base model too"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not supported"),
        ({"use_dora": True}, "use_dora is not supported"),
    ],
)
def test_a_config_that_cannot_be_honoured_names_the_field(tmp_path, config, words):
    with pytest.raises(AdapterError, match=words):
        read_config(write_adapter(tmp_path, **config))


@pytest.mark.parametrize("text", ["[1]", '"x"', "null", "{", ""])
def test_a_config_that_is_no_object_is_refused(tmp_path, text):
    (write_adapter(tmp_path) / "adapter_config.json").write_text(text)
    with pytest.raises(AdapterError, match=r"is not (a )?JSON"):
        read(tmp_path)


def test_a_config_of_any_size_is_not_read(tmp_path):
    file = write_adapter(tmp_path) / "adapter_config.json"
    file.write_text("{" + " " * 2**20 + "}")
    with pytest.raises(AdapterError, match="larger than 1048576 bytes"):
        read(tmp_path)


def test_the_scale_is_alpha_over_the_rank_or_its_root(tmp_path):
    assert scale_of(tmp_path, "q_proj", 2, lora_alpha=6) == 3
    assert scale_of(tmp_path, "q_proj", 4, lora_alpha=6, use_rslora=True) == 3
    assert scale_of(tmp_path, "q_proj", 4, lora_alpha=6, use_rslora=False) == 1.5
    folder = write_adapter(tmp_path)
    config = json.loads((folder / "adapter_config.json").read_text())
    del config["lora_alpha"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert read_config(folder).scale("q_proj", 2) == 4, "peft's default is 8"


@pytest.mark.parametrize(
    ("pattern", "module", "matches"),
    [
        ("q_proj", "model.layers.0.self_attn.q_proj", True),
        ("q_proj", "q_proj", True),
        ("q_proj", "model.layers.0.self_attn.fq_proj", False),
        ("q_proj", "model.layers.0.q_proj.lora", False),
        (r"layers\.1\.mlp\.up_proj", "model.layers.1.mlp.up_proj", True),
        (r"layers\.1\.mlp\.up_proj", "model.layers.11.mlp.up_proj", False),
        ("up_proj|q_proj", "model.q_proj", True),
    ],
)
def test_a_pattern_is_a_whole_name_or_its_end_behind_a_dot(tmp_path, pattern, module, matches):
    scale = scale_of(tmp_path, module, 1, lora_alpha=2, alpha_pattern={pattern: 7})
    assert scale == (7 if matches else 2)


@pytest.mark.parametrize(("said", "kept"), [("a/b", "a/b"), (None, None), (3, None)])
def test_what_an_adapter_says_that_it_was_made_for_is_kept(tmp_path, said, kept):
    assert read(write_adapter(tmp_path, base_model_name_or_path=said)).base_model == kept


def test_each_file_that_decides_is_in_the_content_hash(tmp_path):
    def hashed(tensors=None, **config):
        return PeftSource().content_hash(write_adapter(tmp_path, tensors, **config))

    other = {A: torch.zeros(2, 64), B: torch.ones(64, 2)}
    assert hashed() == hashed()
    assert len({hashed(), hashed(lora_alpha=5), hashed(other), hashed(other, lora_alpha=5)}) == 4
    assert read(tmp_path).content_hash == hashed(other, lora_alpha=5)


def test_a_folder_under_the_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_adapter(tmp_path / "mine")
    assert PeftSource().resolve(f"~{os.sep}mine") == (tmp_path / "mine").resolve()


@pytest.mark.parametrize(
    ("name", "repo_id", "revision"),
    [("a/b", "a/b", None), ("a/b@v1", "a/b", "v1"), ("a-1/b_2@refs/pr/3", "a-1/b_2", "refs/pr/3")],
)
def test_a_hub_id_may_name_a_revision_and_two_files_are_asked_for(
    tmp_path, monkeypatch, name, repo_id, revision
):
    asked = []

    def download(repo_id, *, revision, allow_patterns):
        asked.append((repo_id, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert PeftSource().resolve(name) == tmp_path
    assert asked == [(repo_id, revision, ["adapter_config.json", WEIGHTS])]
