"""Pages are allocated ahead, handed out in parts, and freed with the last part."""

import ctypes
import gc
import mmap
import re
import sys
import weakref
from pathlib import Path

import pytest

from quire.machine.pages import HUGE_BYTES, PreparedPages, has_huge_pages

MIB = 2**20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are prepared on Linux only")


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * mmap.PAGESIZE


def test_pages_are_allocated_by_the_thread():
    before, prepared = resident_bytes(), PreparedPages()
    prepared.prepare(64 * MIB)
    prepared._thread.join()
    assert resident_bytes() - before > 60 * MIB
    prepared.close()


def test_parts_are_zeros_beside_each_other_on_pages_of_their_own():
    prepared = PreparedPages()
    prepared.prepare(8 * MIB)
    first, second = prepared.take(10), prepared.take(5000)
    assert [len(first), len(second)] == [10, 5000]
    first[:], second[:] = b"\x01" * 10, b"\x02" * 5000
    third = prepared.take(mmap.PAGESIZE)
    assert set(third) == {0}
    assert (set(first), set(second)) == ({1}, {2})
    prepared.close()
    assert set(second) == {2}


def test_more_than_is_left_is_not_given():
    prepared = PreparedPages()
    assert prepared.take(1) is None
    prepared.prepare(MIB)
    assert prepared.take(MIB + 1) is None
    assert len(prepared.take(MIB)) == MIB
    assert prepared.take(1) is None
    prepared.close()
    assert prepared.take(1) is None


def test_what_was_not_taken_is_given_back():
    before, prepared = resident_bytes(), PreparedPages()
    prepared.prepare(64 * MIB)
    part = prepared.take(4 * MIB)
    prepared._thread.join()
    prepared.close()
    assert resident_bytes() - before < 30 * MIB
    part[:] = b"\x01" * len(part)  # still mapped


def test_memory_is_freed_with_its_last_part():
    prepared = PreparedPages()
    prepared.prepare(MIB)
    memory = weakref.ref(prepared._memory)
    first, second = prepared.take(100), prepared.take(100)
    prepared.close()
    del first
    gc.collect()
    assert memory() is not None
    del second
    gc.collect()
    assert memory() is None


def test_a_second_engine_leaves_the_pages_of_the_first():
    prepared = PreparedPages()
    prepared.prepare(MIB)
    prepared.prepare(4 * MIB)
    assert prepared.take(2 * MIB) is None
    prepared.close()
    prepared.prepare(4 * MIB)
    assert len(prepared.take(2 * MIB)) == 2 * MIB
    prepared.close()


def test_memory_that_cannot_be_mapped_is_left_to_its_use():
    prepared = PreparedPages()
    prepared.prepare(2**60)
    assert prepared.take(1) is None


def test_what_was_taken_is_not_cleared_by_the_thread():
    prepared = PreparedPages()
    prepared.prepare(64 * MIB)
    parts = []
    while (part := prepared.take(100_000)) is not None:
        part[:] = b"\x07" * len(part)
        parts.append(part)
    prepared._thread.join()
    assert all(set(part) == {7} for part in parts)
    prepared.close()


def bytes_in_huge_pages(part):
    """Return the bytes of the part's mapping that are in huge pages, by the system's account."""
    address, is_here = ctypes.addressof(ctypes.c_char.from_buffer(part)), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_here = int(match[1], 16) <= address < int(match[2], 16)
        elif is_here and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no such mapping")


needs_huge_pages = pytest.mark.skipif(not has_huge_pages(), reason="the system has no huge pages")


@needs_huge_pages
def test_where_huge_pages_are_slow_small_ones_come_first_and_are_merged_later():
    prepared = PreparedPages(slow_s=0.0, merge_delay_s=0.0)
    prepared.prepare(64 * MIB)
    prepared._thread.join()
    parts = [prepared.take(16 * MIB) for _ in range(3)]
    for number, part in enumerate(parts):
        part[:] = bytes([number + 1]) * len(part)
    assert bytes_in_huge_pages(parts[2]) == 0
    prepared.close()
    prepared._merging.join()
    assert [set(part) for part in parts] == [{1}, {2}, {3}]
    assert prepared.take(1) is None
    if not bytes_in_huge_pages(parts[2]):
        pytest.skip("Linux before 6.1, or no free memory in large pieces")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("num_bytes", [100, HUGE_BYTES, 2 * HUGE_BYTES + 1])
def test_memory_of_any_size_may_have_slow_pages(num_bytes):
    prepared = PreparedPages(slow_s=0.0, merge_delay_s=0.0)
    prepared.prepare(num_bytes)
    prepared._thread.join()
    part = prepared.take(num_bytes)
    prepared.close()
    if prepared._merging is not None:
        prepared._merging.join()
    assert set(part) == {0}


@needs_huge_pages
def test_where_huge_pages_are_fast_nothing_is_merged():
    prepared = PreparedPages(slow_s=1e9)
    prepared.prepare(64 * MIB)
    prepared._thread.join()
    part = prepared.take(48 * MIB)
    prepared.close()
    assert (prepared._small_from, prepared._merging) == (None, None)
    assert set(part) == {0}


def test_without_huge_pages_none_are_asked_for(monkeypatch, tmp_path):
    modes = tmp_path / "enabled"
    monkeypatch.setattr("quire.machine.pages.HUGE_PAGE_MODES", modes)
    for text in ("always madvise [never]\n", None):
        modes.write_text(text) if text else modes.unlink()
        assert not has_huge_pages()
        prepared = PreparedPages(slow_s=0.0)
        prepared.prepare(4 * HUGE_BYTES)
        prepared._thread.join()
        part = prepared.take(2 * HUGE_BYTES)
        prepared.close()
        assert prepared._merging is None
        assert set(part) == {0}
