"""Weights come from a hub in the parts that are missing, once, at one revision, and checked."""

import hashlib
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
    what = sys.argv[3]
    print(
        download(
            sys.argv[1], sys.argv[2] or None,
            with_weights=what == "weights", with_code=what == "code",
        )
    )
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


def start(
    hub: Hub,
    cache: Path,
    revision: str = "",
    what: str = "weights",
    program: str = PROGRAM,
    **env: str,
):
    return subprocess.Popen(
        [sys.executable, "-c", program, MODEL, revision, what],
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
    assert text == "ERROR its download from the Hugging Face hub failed: it has no revision 'v7'"


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, "RepoNotFound", "the hub has no such model, or it is private; check its name, and"),
        (404, "RepoNotFound", "the hub has no such model, or it is private; check its name, and"),
        (401, "GatedRepo", "access to it is restricted: ask for it at {url}/acme/tiny, and set HF"),
        (403, "GatedRepo", "access to it is restricted: ask for it at {url}/acme/tiny, and set HF"),
        (503, "", "Error: Server error '503 Service Unavailable' for url"),
    ],
)
def test_a_hub_that_refuses_is_an_error_with_the_way_out(hub, cache, status, code, advice):
    hub.refusal = (status, code)
    text = download(hub, cache)
    assert text.startswith("ERROR its download from the Hugging Face hub failed: ")
    assert advice.format(url=hub.url) in text


def test_offline_a_model_that_was_never_downloaded_is_an_error_with_the_way_out(hub, cache):
    text = download(hub, cache, HF_HUB_OFFLINE="1")
    assert f"the cache {cache} does not have it; start once without HF_HUB_OFFLINE" in text


def test_a_full_disk_is_an_error_with_the_folder_that_is_full(hub, cache):
    folder = Path(download(hub, cache, "v2", "none"))
    digest = hashlib.sha256(SINGLE["model.safetensors"]).hexdigest()
    blob = folder.parent.parent / "blobs" / digest
    blob.with_name(f"{digest}.quire-partial").symlink_to("/dev/full")
    text = download(hub, cache, "v2")
    assert f"no space is left in the cache {cache}; free some" in text


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
    (partial,) = stored(cache, "*.quire-partial")
    assert partial.stat().st_size == 0
    hub.wrong.clear()
    assert files(download(hub, cache, "v2"))["model.safetensors"] == SINGLE["model.safetensors"]


def open_partials(process) -> list[str]:
    targets = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").glob("*")]
    return [target for target in targets if target.endswith(".quire-partial")]


def test_a_process_that_waited_for_a_wrong_download_gets_the_right_one(hub, cache):
    hub.wrong.add("model.safetensors")
    hub.may_send.clear()
    processes = [start(hub, cache, "v2") for _ in range(2)]
    for _ in range(600):
        if "model.safetensors" in hub.names() and all(map(open_partials, processes)):
            break
        time.sleep(0.1)
    hub.wrong.clear()
    hub.may_send.set()
    texts = sorted(outcome(process)[0] for process in processes)
    assert files(texts[0])["model.safetensors"] == SINGLE["model.safetensors"]
    assert "has the SHA-256" in texts[1]


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


CODE = {
    **SINGLE,
    "config.json": json.dumps(
        {
            "auto_map": {
                "AutoConfig": "configuration_acme.AcmeConfig",
                "AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM",
                "AutoModel": "other/model--modeling_other.OtherModel",
                "AutoProcessor": None,
            }
        }
    ).encode(),
    "configuration_acme.py": b"size = 1\n",
    "modeling_acme.py": b"def f():\n    from .layers_acme import Layer\nfrom . import norms_acme\n",
    "layers_acme.py": b"from .modeling_acme import f\nimport os.path\n",
    "norms_acme.py": b"this is no Python\n",
    "unused.py": b"",
    "modeling_other.py": b"",
}
MODULES = {"configuration_acme.py", "modeling_acme.py", "layers_acme.py", "norms_acme.py"}


@pytest.fixture
def code_hub():
    with serve_hub(Hub(main=CODE, v2=SINGLE)) as served:
        yield served


def test_code_is_downloaded_only_on_demand(code_hub, cache):
    assert not {name for name in files(download(code_hub, cache)) if name.endswith(".py")}
    assert not {name for name in code_hub.names() if name.endswith(".py")}


def test_code_on_demand_is_what_the_config_names_and_what_that_imports(code_hub, cache):
    folder = download(code_hub, cache, "", "code")
    found = files(folder)
    assert {name for name in found if name.endswith(".py")} == MODULES
    assert all(found[name] == CODE[name] for name in MODULES)


def test_code_is_that_of_the_weights_revision(cache):
    moved = {**CODE, "modeling_acme.py": b"moved = 1\n"}
    with serve_hub(Hub(main=moved, reviewed=CODE)) as served:
        commit = served.commit("reviewed")
        folder = download(served, cache, "reviewed", "code")
        assert Path(folder).name == commit
        assert files(folder)["modeling_acme.py"] == CODE["modeling_acme.py"]
        assert download(served, cache, commit, "code") == folder


def test_a_module_that_the_hub_lacks_is_named(cache):
    config = json.dumps({"auto_map": {"AutoModel": "no_such.Model"}}).encode()
    with serve_hub(Hub(main={**SINGLE, "config.json": config})) as served:
        text = download(served, cache, "", "code")
    assert "the hub has no no_such.py" in text


def test_code_that_was_downloaded_is_found_offline(code_hub, cache):
    folder = download(code_hub, cache, "", "code")
    assert download(code_hub, cache, "", "code", HF_HUB_OFFLINE="1") == folder


LARGE = """
import quire.compose.hubs.hugging_face as hub
hub.constants.MAX_HTTP_DOWNLOAD_SIZE = 200_000
hub.hf_hub_download = lambda _, name, **named: print(f"by the client: {name}\\n", end="")
"""


def test_a_file_that_the_hub_does_not_serve_by_http_is_left_to_its_client(hub, cache):
    out, _ = outcome(start(hub, cache, program=LARGE + PROGRAM))
    assert [name for name in SHARDS if f"by the client: {name}" in out] == list(SHARDS)
    assert not list(cache.rglob("*.quire-partial"))
