"""Keys of a launch: 64 digits in a private file or on standard input, and nowhere else."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import zmq

from quire.errors import SettingsError
from quire.process.launch_key import LaunchKey

TEXT = "0123456789abcdef" * 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key"


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)


def test_each_launch_has_another_key():
    keys = [LaunchKey.new() for _ in range(50)]
    assert len({key.text for key in keys}) == 50
    assert len({key.listener.public for key in keys}) == 50


def test_both_machines_derive_the_same_keys_from_the_text():
    key = LaunchKey.from_text(TEXT)
    again = LaunchKey.from_text(f" {TEXT.upper()}\n")
    assert (again.listener, again.joiner) == (key.listener, key.joiner)
    assert key.text == TEXT


def test_the_ends_have_different_keys_and_a_public_key_belongs_to_its_secret():
    key = LaunchKey.new()
    assert len({key.listener.public, key.joiner.public}) == 2
    assert len({key.listener.secret, key.joiner.secret}) == 2
    for keys in (key.listener, key.joiner):
        assert zmq.curve_public(keys.secret) == keys.public


def test_a_printed_key_shows_no_secret():
    key = LaunchKey.from_text(TEXT)
    shown = f"{key} {key!r} {key.listener!r} {key.joiner}"
    assert TEXT not in shown
    assert repr(key.secret) not in shown
    assert key.listener.secret.decode() not in shown
    assert key.joiner.secret.decode() not in shown


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "0" * 63 + "g", "0x" + "0" * 62, "ab " * 21 + "a", "٣" * 64]
)
def test_any_other_text_is_refused_and_not_repeated(text):
    with pytest.raises(SettingsError, match=f"64 hexadecimal digits; it has {len(text)} ") as error:
        LaunchKey.from_text(text)
    assert not text or text not in str(error.value)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(length):
    with pytest.raises(SettingsError, match=f"32 bytes, not {length}"):
        LaunchKey(bytes(length))


def test_a_written_key_is_read_back(path):
    key = LaunchKey.new()
    key.write(path)
    assert LaunchKey.read(path, 0.0) == key
    assert LaunchKey.read(str(path), 0.0) == key


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_a_written_key_is_private_whatever_the_umask_is(path, umask):
    before = os.umask(umask)
    try:
        LaunchKey.new().write(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_not_overwritten(path):
    LaunchKey.from_text(TEXT).write(path)
    with pytest.raises(SettingsError, match="cannot be written"):
        LaunchKey.new().write(path)
    assert LaunchKey.read(path, 0.0).text == TEXT


def test_a_link_that_another_user_may_have_placed_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="cannot be written"):
        LaunchKey.new().write(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o601, 0o604, 0o644, 0o620, 0o640, 0o660])
def test_a_file_that_others_may_access_is_refused(path, mode):
    write(path, TEXT, mode)
    with pytest.raises(SettingsError, match=f"others may access .*{mode:o}.*chmod 600"):
        LaunchKey.read(path, 0.0)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(path, mode):
    write(path, TEXT, mode)
    assert LaunchKey.read(path, 0.0).text == TEXT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(path):
    write(path, TEXT)
    os.chown(path, 12345, -1)
    with pytest.raises(SettingsError, match="belongs to user 12345"):
        LaunchKey.read(path, 0.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o460, False), (0o444, False)])
def test_a_group_may_read_a_secret_that_root_hands_out(mode, is_read):
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as file:  # any user may enter the folder
        file.write(TEXT)
        file.flush()
        os.chmod(file.name, mode)
        os.chown(file.name, 0, 54321)
        program = (
            "from quire.process.launch_key import LaunchKey\n"
            "import os; os.setegid(54321); os.seteuid(12345)\n"
            f"print(LaunchKey.read({file.name!r}, 0.0).text)"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (TEXT in ended.stdout) == is_read
    assert ("others may access" in ended.stderr) != is_read


def test_a_file_that_comes_later_is_waited_for(path):
    def write_slowly():
        time.sleep(0.3)
        path.touch(0o600)  # an empty file is not a wrong key: its writer is not done
        time.sleep(0.3)
        path.write_text(TEXT)

    thread = threading.Thread(target=write_slowly)
    thread.start()
    assert LaunchKey.read(path, 30.0).text == TEXT
    thread.join()


def test_an_empty_file_is_named(path):
    path.touch(0o600)
    with pytest.raises(SettingsError, match=f"{path} is empty, and no launch key; remove it"):
        LaunchKey.read(path, 0.0)


@pytest.mark.parametrize("name", ["-", Path("-")])
def test_a_key_is_not_written_to_standard_input(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="cannot be written to standard input; name a file"):
        LaunchKey.new().write(name)
    assert not list(tmp_path.iterdir())


def test_a_file_that_never_comes_is_named(path):
    with pytest.raises(SettingsError, match=rf"no launch key in {path} after 0\.1 s"):
        LaunchKey.read(path, 0.1)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=f"{tmp_path} cannot be read: .*directory"):
        LaunchKey.read(tmp_path, 0.0)


def test_the_content_of_a_wrong_file_is_not_repeated(path):
    write(path, "hunter2")
    with pytest.raises(SettingsError, match=f"content of {path} is no launch key") as error:
        LaunchKey.read(path, 0.0)
    assert "hunter2" not in str(error.value)


def read_from_input(timeout_s, **options):
    program = f"""
from quire.process.launch_key import LaunchKey
print(LaunchKey.read('-', {timeout_s}).text)
"""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", program], text=True, **pipes | options)


def test_a_key_comes_by_standard_input_that_stays_open():
    with read_from_input(60) as process:
        for part in (TEXT[:30], TEXT[30:], "\nmore"):
            process.stdin.write(part)
            process.stdin.flush()
            time.sleep(0.1)
        assert process.stdout.readline().strip() == TEXT


def test_a_standard_input_without_a_key_is_named():
    with read_from_input(0.1) as process:
        assert "no launch key came on the standard input within 0.1 s" in process.stderr.read()
    with read_from_input(60) as process:
        _, errors = process.communicate("")
        assert "the standard input is no launch key" in errors
    with read_from_input(60, stdin=None, preexec_fn=lambda: os.close(0)) as process:
        assert "cannot be read from the standard input" in process.stderr.read()
