"""A file of results is one process's, and is replaced by a whole one or not at all."""

import fcntl

import pytest

from quire.cli.batch.result_files import locked, opened, replaced
from quire.errors import BatchFileError

IN_USE = "is being written by another process"


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "out.jsonl"
    made.write_bytes(b"old\n")
    return made


def test_another_file_takes_the_place_of_one_and_is_locked(path):
    file = opened(str(path))
    locked(file, str(path))
    new = replaced(file, str(path), lambda target: target.write(b"new\n") and None)
    new.write(b"more\n")
    assert path.read_bytes() == b"new\nmore\n"
    with opened(str(path)) as other, pytest.raises(BatchFileError, match=IN_USE):
        locked(other, str(path))
    new.close()
    with opened(str(path)) as other:
        locked(other, str(path))


def test_a_process_that_opened_the_file_before_it_was_replaced_is_refused(path):
    with opened(str(path)) as early:
        replaced(opened(str(path)), str(path), lambda target: None).close()
        with pytest.raises(BatchFileError, match=IN_USE):
            locked(early, str(path))
        path.unlink()
        with pytest.raises(BatchFileError, match=IN_USE):
            locked(early, str(path))


def test_a_file_stays_if_the_other_one_cannot_be_written(path):
    def write(target):
        target.write(b"ne")
        raise OSError("no space left on device")

    with opened(str(path)) as file:
        with pytest.raises(OSError, match="no space"):
            replaced(file, str(path), write)
        assert path.read_bytes() == b"old\n"
        assert [each.name for each in path.parent.iterdir()] == ["out.jsonl"]
        file.write(b"more\n")
    assert path.read_bytes() == b"old\nmore\n"


def test_what_a_killed_process_has_left_is_no_part_of_the_file(path):
    path.with_name(".out.jsonl.new").write_bytes(b"x" * 1000)
    replaced(opened(str(path)), str(path), lambda target: target.write(b"new\n") and None).close()
    assert path.read_bytes() == b"new\n"


def test_a_link_in_the_place_of_the_other_file_is_not_followed(path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"thesis")
    path.with_name(".out.jsonl.new").symlink_to(precious)
    with opened(str(path)) as file, pytest.raises(OSError, match="symbolic link"):
        replaced(file, str(path), lambda target: None)
    assert precious.read_bytes() == b"thesis"
    assert path.read_bytes() == b"old\n"


def test_two_processes_cannot_replace_at_the_same_time(path):
    with path.with_name(".out.jsonl.new").open("wb") as held, opened(str(path)) as file:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BatchFileError, match=IN_USE):
            replaced(file, str(path), lambda target: None)
    assert path.read_bytes() == b"old\n"
