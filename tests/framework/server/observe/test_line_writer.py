"""Lines reach their file in order, also after a rotation; a slow file costs lines, not time."""

import os
import stat
from pathlib import Path

import pytest
from processes import eventually

from quire.server.observe.line_writer import LineWriter


def test_lines_are_written_in_order_and_a_close_writes_the_last(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("before\n")
    writer = LineWriter(path)
    for number in range(100):
        writer.write(f"{number}\n")
    writer.close()
    assert path.read_text().split() == ["before", *map(str, range(100))]
    assert writer.num_dropped == 0


def test_a_new_file_is_for_its_owner_only(tmp_path):
    LineWriter(tmp_path / "access.log").close()
    assert stat.S_IMODE((tmp_path / "access.log").stat().st_mode) == 0o600


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_file_that_was_moved_or_removed_is_made_anew(tmp_path, is_moved):
    path = tmp_path / "access.log"
    writer = LineWriter(path)
    writer.write("first\n")
    eventually(lambda: path.read_text() == "first\n")
    if is_moved:
        path.rename(tmp_path / "access.log.1")
    else:
        path.unlink()
    writer.write("second\n")
    writer.close()
    assert path.read_text() == "second\n"


def test_lines_beyond_the_limit_are_dropped_and_counted(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = LineWriter(pipe, max_lines=4)
    writer.write("x" * 2**20 + "\n")  # more than a pipe holds: the thread waits for a reader
    eventually(lambda: not writer._lines)
    for _ in range(7):
        writer.write("more\n")
    assert writer.num_dropped == 3
    os.close(reader)
    writer.close()


def test_a_file_that_cannot_be_written_costs_its_lines_and_one_message(caplog):
    writer = LineWriter(Path("/dev/full"))
    writer.write("lost\n")
    eventually(lambda: writer.num_dropped == 1)
    writer.write("lost\n")
    eventually(lambda: writer.num_dropped == 2)
    writer.close()
    assert caplog.text.count("the access log cannot be written") == 1


def test_the_standard_output_stays_open(capfd):
    writer = LineWriter(None)
    writer.write("a line\n")
    writer.close()
    print("another")
    assert capfd.readouterr().out == "a line\nanother\n"
