"""Shared memory without a name: who can open it, and what is left of it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from processes import path_with

from quire.errors import CapacityError, SettingsError
from quire.native.collectives.shared_segment import SegmentHandle, SharedSegment

READ = """
import sys
from quire.native.collectives.shared_segment import SegmentHandle, SharedSegment
segment = SharedSegment.open(SegmentHandle(*map(int, sys.argv[1:])))
assert segment.layout[:3] == (7, 8, 0), segment.layout
segment.memory[4000:4004] = segment.memory[4004:4008]
"""


@pytest.fixture
def segment():
    made = SharedSegment.create(8192, (7, 8))
    yield made
    made.close()


def test_another_process_has_the_same_memory(segment):
    segment.memory[4004:4008] = b"here"
    handle = segment.handle
    numbers = [str(number) for number in (handle.pid, handle.fd, handle.key)]
    environment = {**os.environ, "PYTHONPATH": path_with("")}
    subprocess.run([sys.executable, "-c", READ, *numbers], check=True, env=environment)
    assert segment.memory[4000:4004] == b"here"


def test_its_size_cannot_be_changed(segment):
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.truncate(segment.handle.fd, size)


def test_a_process_that_is_gone_is_an_error(segment):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(SettingsError, match="must run as one user, in one container"):
        SharedSegment.open(replace(segment.handle, pid=child.pid))


def test_a_closed_segment_cannot_be_opened():
    segment = SharedSegment.create(8192, ())
    segment.close()
    segment.close()
    with pytest.raises(SettingsError, match="cannot be shared"):
        SharedSegment.open(segment.handle)


def test_a_segment_with_another_key_is_another_one(segment):
    with pytest.raises(SettingsError, match="is not the shared memory that the ranks agreed on"):
        SharedSegment.open(replace(segment.handle, key=segment.handle.key ^ 1))


@pytest.mark.parametrize("contents", [b"", b"short", bytes(8192)])
def test_any_other_file_is_refused(tmp_path, contents):
    path = tmp_path / "file"
    path.write_bytes(contents)
    with (
        open(path, "r+b") as file,
        pytest.raises(SettingsError, match="is not the shared memory"),
    ):
        SharedSegment.open(SegmentHandle(os.getpid(), file.fileno(), 0))


def test_memory_that_the_system_does_not_have_is_an_error():
    with pytest.raises(CapacityError, match="cannot be allocated"):
        SharedSegment.create(2**62, ())


def test_no_file_is_left_open_after_an_error(segment):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CapacityError):
            SharedSegment.create(2**62, ())
        with pytest.raises(SettingsError):
            SharedSegment.open(replace(segment.handle, key=1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_left_of_a_closed_segment():
    segment = SharedSegment.create(8192, ())
    other = SharedSegment.open(segment.handle)
    segment.close()
    other.close()
    assert "quire-ranks" not in Path("/proc/self/maps").read_text()
