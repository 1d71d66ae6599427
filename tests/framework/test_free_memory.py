"""What is free is read from the system, and no more is taken than a share of it."""

import math
import shutil
import subprocess

import pytest

from quire.free_memory import cache_bytes, free_bytes, free_cuda_bytes, free_host_bytes

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


def test_a_container_without_a_limit_has_what_the_system_has(memory_info, tmp_path):
    assert free_host_bytes(memory_info, cgroup(tmp_path, "max", 1_000_000)) == 9000 * 1024


def test_where_the_system_says_nothing_little_is_assumed(tmp_path):
    assert free_host_bytes(tmp_path / "none", tmp_path) == 2 * 2**30


def test_this_machine_has_some_memory():
    free = free_bytes("cpu")
    assert free is not None
    assert 0 < free < math.inf


def test_without_a_driver_nothing_is_known_of_a_gpu():
    assert free_cuda_bytes("libno-such-driver.so.1") is None


@pytest.mark.parametrize(("device", "share"), [("cpu", 400), ("cuda", 900)])
def test_the_cache_takes_a_share_of_what_is_free(device, share):
    assert cache_bytes(device, 1000) == share
    assert cache_bytes(device, -5) == 0, "the weights alone do not fit"


DRIVER = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static char devices[] = "01";
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
    if (strcmp(name, "GPU-1")) return 6;
    *device = &devices[1];
    return 0;
}
int nvmlDeviceGetMemoryInfo(char *device, memory_t *memory) {
    memory->total = 80ULL << 30;
    memory->free = *device == '0' ? 70ULL << 30 : 7ULL << 30;
    memory->used = memory->total - memory->free;
    return 0;
}
"""


def driver(folder, init=0):
    """Build a library with the driver's calls for two devices, with 70 and 7 GiB free."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / f"driver{init}.c", folder / f"libdriver{init}.so"
    source.write_text(DRIVER.replace("INIT", str(init)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.mark.parametrize(
    ("visible", "free"),
    [("", 70 * 2**30), ("1,0", 7 * 2**30), ("GPU-1", 7 * 2**30), ("5", None), ("GPU-9", None)],
)
def test_the_driver_is_asked_for_the_first_visible_device(tmp_path, monkeypatch, visible, free):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert free_cuda_bytes(driver(tmp_path)) == free


def test_a_driver_that_does_not_start_says_nothing(tmp_path):
    assert free_cuda_bytes(driver(tmp_path, init=9)) is None
