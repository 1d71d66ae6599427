"""Keys of an engine's start: the user's, or one in a file that lasts as long as the start."""

import os
import re
import socket
import subprocess
import sys
import threading

import pytest
from left_keys import key_left_in

from quire.errors import SettingsError
from quire.process.launch_key import LaunchKey
from quire.process.start_key import StartKey

TEXT = "0123456789abcdef" * 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key"


@pytest.fixture
def start():
    made = []

    def make(path):
        made.append(StartKey(path))
        return made[-1]

    yield make
    for each in made:
        each.remove()


def test_a_start_writes_a_key_that_workers_read_and_removes_it(path, start):
    made = start(path)
    assert LaunchKey.read(path, 0.0) == made.key
    assert path.stat().st_mode & 0o777 == 0o600
    made.remove()
    made.remove()
    assert not path.exists()


def test_without_a_file_each_start_has_a_new_key(start):
    assert start(None).key != start(None).key


def test_a_start_uses_the_key_that_the_user_has_made_and_leaves_it(path, start):
    LaunchKey.from_text(TEXT).write(path)
    path.chmod(0o400)
    made = [start(path), start(path)]
    for each in made:
        assert each.key.text == TEXT
        each.remove()
    assert LaunchKey.read(path, 0.0).text == TEXT


def test_the_key_that_a_killed_engine_has_left_is_replaced(path, start):
    left = key_left_in(path)
    made = start(path)
    assert made.key.text != left
    assert LaunchKey.read(path, 0.0) == made.key


def test_a_second_engine_says_which_one_has_the_file_and_leaves_it(path, start):
    made = start(path)
    engine = f"process {os.getpid()} on {re.escape(socket.gethostname())}"
    expected = f"{path} has the launch key of another engine, {engine}, which still waits .*own"
    for _ in range(2):
        with pytest.raises(SettingsError, match=expected) as error:
            StartKey(path)
    assert made.key.text not in str(error.value)
    assert LaunchKey.read(path, 0.0) == made.key
    made.remove()
    assert start(path).key != made.key


def test_a_start_does_not_remove_the_key_that_took_the_place_of_its_own(path, start):
    made = start(path)
    path.unlink()
    other = start(path)
    made.remove()
    assert LaunchKey.read(path, 0.0) == other.key


@pytest.mark.parametrize("is_left", [False, True])
def test_of_many_engines_that_start_at_the_same_time_one_has_the_file(tmp_path, is_left):
    key_left_in(tmp_path / "left")
    left = (tmp_path / "left").read_text()
    for round_number in range(30):
        path = tmp_path / str(round_number)
        if is_left:
            path.write_text(left)
            path.chmod(0o600)
        made, errors = started_at_once(path, 12)
        assert len(made) == 1
        assert LaunchKey.read(path, 0.0) == made[0].key
        assert len(errors) == 11
        assert all("the launch key of another engine" in error for error in errors)
        made[0].remove()


def started_at_once(path, number):
    """The keys of so many starts, and the errors of those that have none."""
    made, errors = [], []
    barrier = threading.Barrier(number)

    def begin():
        barrier.wait()
        try:
            made.append(StartKey(path))
        except SettingsError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made, errors


def test_an_empty_file_is_named(path):
    path.touch(0o600)
    with pytest.raises(SettingsError, match=f"{path} is empty, and no launch key; remove it"):
        StartKey(path)


def test_a_file_that_another_engine_has_just_made_is_read_once_it_is_written(path, start):
    path.touch(0o600)
    write = threading.Timer(0.2, path.write_text, [TEXT])
    write.start()
    assert start(path).key.text == TEXT
    write.join()


def test_a_start_leaves_what_is_no_key_and_what_a_link_points_to(path, tmp_path, start):
    other = tmp_path / "elsewhere"
    path.symlink_to(other)
    with pytest.raises(SettingsError, match="cannot be written"):
        StartKey(path)
    left = key_left_in(other)
    made = start(path)
    assert made.key.text != left
    assert not path.is_symlink()
    assert LaunchKey.read(other, 0.0).text == left
    made.remove()
    path.write_text("hunter2")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=f"content of {path} is no launch key"):
        StartKey(path)
    assert path.read_text() == "hunter2"


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot be written to .*none/key"):
        StartKey(tmp_path / "none" / "key")


def test_an_engine_may_read_its_key_from_standard_input():
    program = "from quire.process.start_key import StartKey; print(StartKey('-').key.text)"
    ended = subprocess.run(
        [sys.executable, "-c", program], input=TEXT + "\n", capture_output=True, text=True
    )
    assert ended.stdout.strip() == TEXT, ended.stderr
