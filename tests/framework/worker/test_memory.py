"""Memory for the cache of a host: zeros that take nothing before they are used."""

import errno
import mmap
import sys
from pathlib import Path

import pytest
import torch

from quire.worker.memory import is_out_of_memory, zeroed_bytes

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("size", [0, 1, 4097, 3 * 2**20])
def test_it_is_zero_aligned_and_can_be_written(size):
    memory = zeroed_bytes(size, CPU)
    assert (memory.shape, memory.dtype) == ((size,), torch.uint8)
    assert memory.data_ptr() % 64 == 0
    assert not memory.any()
    assert int(memory.fill_(7).sum()) == 7 * size


@pytest.mark.skipif(not STATUS.is_file(), reason="asks Linux what is in memory")
def test_what_is_not_used_takes_no_memory_and_what_is_let_go_is_given_back():
    before = resident_bytes()
    memory = zeroed_bytes(2**30, CPU)
    assert resident_bytes() - before < 2**24
    memory[: 2**27].fill_(1)
    assert resident_bytes() - before > 2**26
    del memory
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
