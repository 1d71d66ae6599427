"""Memory for the cache of a host: zeros that take nothing before they are used."""

import ctypes
import errno
import mmap
import sys
from pathlib import Path

import pytest
import torch

from quire.errors import CapacityError
from quire.machine.free_memory import cache_bytes
from quire.worker.memory import device_memory as memory
from quire.worker.memory.device_memory import (
    KEPT_BYTES,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    OLDER_KEPT_BYTES,
    enough_memory,
    host_cache_bytes,
    is_out_of_memory,
    keep_freed_memory,
    zeroed_bytes,
)

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_the_ranks_of_a_host_share_its_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 10**9)
    assert host_cache_bytes(1) == cache_bytes(10**9)
    assert host_cache_bytes(4) == cache_bytes(10**9) // 4


@pytest.mark.parametrize("size", [0, 1, 4097, 3 * 2**20])
def test_it_is_zero_aligned_and_can_be_written(size):
    zeros = zeroed_bytes(size, CPU)
    assert (zeros.shape, zeros.dtype) == ((size,), torch.uint8)
    assert zeros.data_ptr() % 64 == 0
    assert not zeros.any()
    assert int(zeros.fill_(7).sum()) == 7 * size


@pytest.mark.skipif(not STATUS.is_file(), reason="asks Linux what is in memory")
def test_what_is_not_used_takes_no_memory_and_what_is_let_go_is_given_back():
    before = resident_bytes()
    zeros = zeroed_bytes(2**30, CPU)
    assert resident_bytes() - before < 2**24
    zeros[: 2**27].fill_(1)
    assert resident_bytes() - before > 2**26
    del zeros
    assert resident_bytes() - before < 2**24


def test_more_than_there_can_be_is_an_error():
    with pytest.raises(OSError, match="memory") as caught:
        zeroed_bytes(2**60, CPU)
    assert is_out_of_memory(caught.value)


def test_a_file_that_is_not_there_is_no_lack_of_memory():
    assert not is_out_of_memory(FileNotFoundError(errno.ENOENT, "no such file"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for large pages")
def test_a_kernel_without_large_pages_gives_small_ones(monkeypatch):
    class PlainMemory(mmap.mmap):
        def madvise(self, *advice):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", PlainMemory)
    assert not zeroed_bytes(2**20, CPU).any()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "no memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"),
    ],
)
def test_lack_of_memory_is_reported_with_a_remedy(error):
    message = r"a step does not fit on cpu; buy more, .*The device reported: "
    with pytest.raises(CapacityError, match=message), enough_memory("a step", CPU, "buy more"):
        raise error


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "no file"), RuntimeError("shapes differ"), KeyError("x")]
)
def test_any_other_error_stays_what_it_is(error):
    with pytest.raises(type(error)) as caught, enough_memory("a step", CPU, "buy more"):
        raise error
    assert caught.value is error


class Libc:
    """Accepts thresholds up to a size, and records the calls."""

    def __init__(self, most):
        self.most = most
        self.asked = []

    def mallopt(self, parameter, value):
        self.asked.append((parameter, value))
        return int(parameter != M_MMAP_THRESHOLD or value <= self.most)


@pytest.mark.parametrize(
    ("most", "asked"),
    [
        (KEPT_BYTES, [(M_MMAP_THRESHOLD, KEPT_BYTES), (M_TRIM_THRESHOLD, KEPT_BYTES)]),
        (
            OLDER_KEPT_BYTES,
            [
                (M_MMAP_THRESHOLD, KEPT_BYTES),
                (M_MMAP_THRESHOLD, OLDER_KEPT_BYTES),
                (M_TRIM_THRESHOLD, KEPT_BYTES),
            ],
        ),
        (0, [(M_MMAP_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, OLDER_KEPT_BYTES)]),
    ],
)
def test_freed_memory_is_kept_as_far_as_libc_grants_it(monkeypatch, most, asked):
    libc = Libc(most)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.40"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    keep_freed_memory()
    assert libc.asked == asked


def test_another_libc_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked"))
    keep_freed_memory()
