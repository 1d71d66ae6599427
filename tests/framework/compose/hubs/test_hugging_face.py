"""Weights come from a hub in the parts that are missing, once, at one revision, and checked."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import MODEL, Hub, serve_hub

PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
from quire.compose.hubs.hub_download import download
from quire.errors import CheckpointNotFoundError
try:
    print(download(sys.argv[1], sys.argv[2] or None, with_weights=sys.argv[3] == "weights"))
except CheckpointNotFoundError as error:
    print("ERROR", error)
"""
SHARDS = {f"model-{i:05d}-of-00002.safetensors": bytes([i]) * 300_000 for i in (1, 2)}
INDEX = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
SHARDED = {
    "config.json": b'{"a": 1}',
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
    "consolidated.safetensors": b"other" * 100_000,
    "onnx/model.safetensors": b"nested" * 100_000,
    "pytorch_model.bin": b"pickle",
}
WHOLE = 24_000_000  # of which the client writes 10 MiB at a time
SINGLE = {
    "config.json": b"{}",
    "model.safetensors": os.urandom(WHOLE),
    "consolidated.safetensors": b"other" * 100_000,
}


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub():
    with serve_hub(Hub(main=SHARDED, v2=SINGLE)) as served:
        yield served


def start(hub: Hub, cache: Path, revision: str = "", what: str = "weights", **env: str):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, MODEL, revision, what],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache),
             "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def outcome(process) -> tuple[str, str]:
    out, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return out.strip(), log


def download(hub: Hub, cache: Path, *args: str, **env: str) -> str:
    return outcome(start(hub, cache, *args, **env))[0]


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_of_a_sharded_model_the_files_of_the_index_are_downloaded(hub, cache):
    found = files(download(hub, cache))
    assert found == {name: SHARDED[name] for name in ("config.json", *SHARDS)} | {
        "model.safetensors.index.json": SHARDED["model.safetensors.index.json"]
    }
    assert not {"onnx/model.safetensors", "consolidated.safetensors"} & {*hub.names()}


def test_a_revision_has_its_own_files(hub, cache):
    folder = download(hub, cache, "v2")
    assert files(folder) == {name: SINGLE[name] for name in ("config.json", "model.safetensors")}
    assert Path(folder).name == hub.commit("v2")
    assert download(hub, cache, hub.commit("v2")) == folder


def test_a_revision_that_does_not_exist_is_an_error(hub, cache):
    text = download(hub, cache, "v7")
    assert text.startswith("ERROR its download from the Hugging Face hub failed: RevisionNotFound")


def test_weights_wait_until_they_are_needed(hub, cache):
    assert "model-00001-of-00002.safetensors" not in files(download(hub, cache, "", "none"))
    assert {*hub.names()} == {"config.json", "model.safetensors.index.json"}


def test_what_is_complete_is_not_downloaded_again(hub, cache):
    folder = download(hub, cache)
    hub.received.clear()
    assert download(hub, cache) == folder
    assert hub.names() == []


def stored(cache: Path, pattern: str) -> list[Path]:
    return list(cache.rglob(pattern))


def killed_half_way(hub: Hub, cache: Path) -> None:
    hub.may_send.clear()
    process = start(hub, cache, "v2")
    for _ in range(600):
        if any(path.stat().st_size > 100_000 for path in stored(cache, "*.quire-partial")):
            break
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=30)
    hub.may_send.set()


def test_a_download_that_was_killed_goes_on_where_it_ended(hub, cache):
    killed_half_way(hub, cache)
    (partial,) = stored(cache, "*.quire-partial")
    size = partial.stat().st_size
    assert 0 < size < WHOLE
    hub.received.clear()
    folder, log = outcome(start(hub, cache, "v2"))
    assert files(folder)["model.safetensors"] == SINGLE["model.safetensors"]
    assert ("model.safetensors", size) in hub.received
    assert "continuing a download at" in log
    assert not stored(cache, "*.quire-partial")


def test_two_processes_download_a_file_once(hub, cache):
    hub.may_send.clear()
    processes = [start(hub, cache, "v2") for _ in range(2)]
    for _ in range(600):
        if "model.safetensors" in hub.names():
            break
        time.sleep(0.1)
    time.sleep(1.0)
    hub.may_send.set()
    outcomes = [outcome(process) for process in processes]
    assert len({folder for folder, _ in outcomes}) == 1
    assert files(outcomes[0][0])["model.safetensors"] == SINGLE["model.safetensors"]
    assert hub.names().count("model.safetensors") == 1


def test_content_that_is_not_the_hubs_is_refused_and_forgotten(hub, cache):
    hub.wrong.add("model.safetensors")
    assert "has the SHA-256" in download(hub, cache, "v2")
    assert not stored(cache, "*.quire-partial")
    hub.wrong.clear()
    assert files(download(hub, cache, "v2"))["model.safetensors"] == SINGLE["model.safetensors"]


def test_a_file_that_the_index_names_and_the_hub_lacks_is_named(hub, cache):
    del hub.files["main"]["model-00002-of-00002.safetensors"]
    try:
        assert "model-00002-of-00002.safetensors" in download(hub, cache)
    finally:
        hub.files["main"]["model-00002-of-00002.safetensors"] = SHARDS[
            "model-00002-of-00002.safetensors"
        ]


def test_offline_the_cache_is_used(hub, cache):
    folder = download(hub, cache)
    hub.received.clear()
    assert download(hub, cache, HF_HUB_OFFLINE="1") == folder
    assert download(hub, cache, "", "none", HF_HUB_OFFLINE="1") == folder
    assert hub.received == []


@pytest.mark.parametrize("revision", ["", "v2"])
def test_offline_an_incomplete_model_is_an_error_that_names_its_files(hub, cache, revision):
    download(hub, cache, revision, "none")
    text = download(hub, cache, revision, HF_HUB_OFFLINE="1")
    if revision:
        assert not text.startswith("ERROR"), "the loader reports a folder without weights"
    else:
        assert text.startswith("ERROR")
        assert "model-00001-of-00002.safetensors" in text


def test_without_a_connection_a_complete_model_is_used(hub, cache):
    folder = download(hub, cache, hub.commit("v2"))
    nowhere = Hub()
    nowhere.url = "http://127.0.0.1:9"
    assert download(nowhere, cache, hub.commit("v2")) == folder
