"""The weight files are read while the parts are chosen."""

import ctypes
import json
import mmap
import os
import sys
from pathlib import Path

import pytest
from processes import eventually

from quire.config import Settings
from quire.launch import composing
from quire.launch import read_ahead as module
from quire.launch.read_ahead import read_ahead
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

NUM_BYTES = 48 * 2**20  # more than a device reads for one request
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="posix_fadvise is Linux's")


def num_resident_pages(file) -> int:
    """Return the number of a file's pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(file, "r+b") as stream, mmap.mmap(stream.fileno(), 0) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pages = (ctypes.c_ubyte * (len(memory) // mmap.PAGESIZE))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), pages) == 0
        return sum(page & 1 for page in pages)


def forget(file) -> None:
    """Drop a file's pages from the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """A folder with two weight files and one that no index names; none of them is in memory."""
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_bytes(os.urandom(NUM_BYTES))
        forget(tmp_path / name)
    if num_resident_pages(tmp_path / "consolidated.safetensors"):
        pytest.skip("this file system keeps its files in memory")
    monkeypatch.setattr(module, "free_host_bytes", lambda: 2**40)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_the_weights_are_asked_for_and_nothing_else(shards, monkeypatch):
    """Each request is small enough for Linux to read all of it."""
    asked, ask = {}, os.posix_fadvise

    def recorded(descriptor, offset, length, advice):
        assert (advice, length <= 256 * 2**10) == (os.POSIX_FADV_WILLNEED, True)
        asked.setdefault(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, []).append(
            (offset, offset + length)
        )
        ask(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", recorded)
    read_ahead(shards).join(20)
    assert set(asked) == {"model-1.safetensors", "model-2.safetensors"}
    for ranges in asked.values():
        ends = [0, *(end for _, end in ranges)]
        assert [start for start, _ in ranges] == ends[:-1]
        assert ends[-1] >= NUM_BYTES


def test_weights_come_into_memory_and_other_files_do_not(shards):
    """How much of what was asked for stays in memory is the system's decision."""
    read_ahead(shards).join(20)
    eventually(lambda: num_resident_pages(shards / "model-1.safetensors") > 0)
    assert num_resident_pages(shards / "consolidated.safetensors") == 0


def test_weights_that_do_not_fit_are_left(shards, monkeypatch):
    monkeypatch.setattr(module, "free_host_bytes", lambda: 2 * NUM_BYTES)
    read_ahead(shards).join(20)
    assert num_resident_pages(shards / "model-1.safetensors") == 0


def test_a_file_that_is_missing_is_left_to_the_loader(shards, capfd):
    (shards / "model-2.safetensors").unlink()
    read_ahead(shards).join(20)
    assert num_resident_pages(shards / "model-1.safetensors") == 0
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("load_format", "is_read"), [("auto", True), ("dummy", False)])
def test_an_engine_that_loads_weights_reads_them_ahead(tmp_path, monkeypatch, load_format, is_read):
    folders = []
    monkeypatch.setattr(composing, "read_ahead", folders.append)
    folder = write_checkpoint(tmp_path / "model", "LlamaForCausalLM").folder
    settings = Settings.from_options({"model": str(folder), "load_format": load_format})
    composing.plan_composition(settings)
    assert folders == []
    composing.compose_engine(settings, load_plugins(settings.plugins))
    assert folders == [folder] * is_read
