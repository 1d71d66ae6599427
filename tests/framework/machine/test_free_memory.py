"""Free memory of the host, and the part of it for the cache."""

import math

import pytest

from quire.machine.free_memory import cache_bytes, free_host_bytes

INFO = "MemTotal:  16000 kB\nMemFree:  2000 kB\nMemAvailable:  9000 kB\nBuffers: 1 kB\n"


@pytest.fixture
def memory_info(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text(INFO)
    return path


def cgroup(tmp_path, limit, used):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    return tmp_path


def test_what_is_available_counts_and_not_what_is_unused(memory_info, tmp_path):
    assert free_host_bytes(memory_info, tmp_path / "none") == 9000 * 1024


def test_a_container_may_have_less(memory_info, tmp_path):
    assert free_host_bytes(memory_info, cgroup(tmp_path, 5_000_000, 1_000_000)) == 4_000_000
    assert free_host_bytes(memory_info, cgroup(tmp_path, 5_000_000, 6_000_000)) == 0


def test_the_cached_files_of_a_container_can_be_dropped(memory_info, tmp_path):
    folder = cgroup(tmp_path, 5_000_000, 4_000_000)
    (folder / "memory.stat").write_text("anon 900000\ninactive_file 3000000\nactive_file 100000\n")
    assert free_host_bytes(memory_info, folder) == 4_000_000
    (folder / "memory.stat").write_text("anon 900000\n")
    assert free_host_bytes(memory_info, folder) == 1_000_000


def test_a_container_without_a_limit_has_what_the_system_has(memory_info, tmp_path):
    assert free_host_bytes(memory_info, cgroup(tmp_path, "max", 1_000_000)) == 9000 * 1024


def test_where_the_system_says_nothing_little_is_assumed(tmp_path):
    assert free_host_bytes(tmp_path / "none", tmp_path) == 2 * 2**30


def test_this_machine_has_some_memory():
    assert 0 < free_host_bytes() < math.inf


def test_the_cache_takes_a_share_of_what_is_free():
    assert cache_bytes(1000) == 400
    assert cache_bytes(-5) == 0, "the weights alone do not fit"


def test_the_ranks_of_a_host_share_what_one_would_take():
    assert cache_bytes(1000, 4) == 100
    assert 3 * cache_bytes(1000, 3) <= cache_bytes(1000)
