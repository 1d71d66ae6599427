"""Compiled kernels are kept, and nothing damaged or foreign is ever loaded."""

import hashlib
import os
import stat

import pytest

from quire_attention_backends.cuda_cache import cached, default_folder


class Maker:
    """Makes code, and counts how often."""

    def __init__(self, code=b"machine code"):
        self.code, self.count = code, 0

    def __call__(self):
        self.count += 1
        return self.code


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kernels"


def files(folder):
    return sorted(path for path in folder.iterdir())


def test_what_was_made_is_not_made_again(folder):
    make = Maker()
    assert cached(("a", "b"), make, folder) == cached(("a", "b"), make, folder) == b"machine code"
    assert make.count == 1


@pytest.mark.parametrize("parts", [("a", "c"), ("ab", ""), ("b", "a"), ("a",)], ids=str)
def test_other_parts_are_another_kernel(folder, parts):
    cached(("a", "b"), Maker(b"one"), folder)
    assert cached(parts, Maker(b"other"), folder) == b"other"
    assert cached(("a", "b"), Maker(b"new"), folder) == b"one"


@pytest.mark.parametrize(
    "damage",
    [lambda kept: kept[:-1], lambda kept: kept[:20], lambda kept: b"", lambda kept: kept + b"x",
     lambda kept: kept[:40] + bytes([kept[40] ^ 1]) + kept[41:]],
    ids=["cut", "cut in the hash", "empty", "longer", "changed"],
)  # fmt: skip
def test_a_damaged_file_is_made_again_and_replaced(folder, damage, caplog):
    cached(("a",), Maker(), folder)
    (path,) = files(folder)
    path.write_bytes(damage(path.read_bytes()))
    make = Maker()
    assert cached(("a",), make, folder) == b"machine code"
    assert make.count == 1
    assert "damaged" in caplog.text
    assert cached(("a",), make, folder) == b"machine code"
    assert make.count == 1


def test_the_folder_and_its_files_are_the_users_own(folder):
    cached(("a",), Maker(), folder)
    (path,) = files(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes()[:32] == hashlib.sha256(b"machine code").digest()


def test_a_folder_that_others_can_write_to_is_not_used(folder, caplog):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    make = Maker()
    assert cached(("a",), make, folder) == cached(("a",), make, folder) == b"machine code"
    assert make.count == 2
    assert files(folder) == []
    assert "others can write to" in caplog.text
    assert "QUIRE_CACHE_DIR" in caplog.text


def test_a_folder_that_cannot_be_made_costs_the_cache_only(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert cached(("a",), Maker(), tmp_path / "file" / "kernels") == b"machine code"
    assert "not kept" in caplog.text


def test_a_file_that_cannot_be_written_leaves_nothing_half_made(folder, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert cached(("a",), Maker(), folder) == b"machine code"
    assert files(folder) == []
    assert "no space left" in caplog.text


def test_what_cannot_be_made_is_not_kept(folder):
    def fail():
        raise ValueError("a bug in the source")

    with pytest.raises(ValueError, match="a bug"):
        cached(("a",), fail, folder)
    assert files(folder) == []


def test_the_user_names_the_folder_or_the_system_does(monkeypatch, tmp_path):
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine" / "kernels"
    monkeypatch.delenv("QUIRE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "quire" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "quire" / "kernels"
