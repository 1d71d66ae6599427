"""The cache of compiled kernels: nothing damaged or foreign is ever loaded."""

import errno
import hashlib
import os
import stat

import pytest

from quire.native import compiled_cache
from quire.native.compiled_cache import cached as cached_with_suffix
from quire.native.compiled_cache import default_folder, find, keep


def cached(parts, make, folder):
    return cached_with_suffix(parts, make, ".bin", folder)


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


@pytest.fixture(autouse=True)
def _complains_anew(monkeypatch):
    monkeypatch.setattr(compiled_cache, "_LOGGED", compiled_cache.LoggedReasons())


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


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
    [lambda kept: kept[:-1], lambda kept: b"", lambda kept: kept + b"x",
     lambda kept: kept[:4] + bytes([kept[4] ^ 1]) + kept[5:]],
    ids=["cut", "empty", "longer", "changed"],
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
    assert path.read_bytes() == b"machine code"
    assert path.name.split("-")[2] == hashlib.sha256(b"machine code").hexdigest()[:32] + ".bin"


def test_a_folder_that_others_can_write_to_is_not_used(folder, caplog):
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    make = Maker()
    assert cached(("a",), make, folder) == cached(("a",), make, folder) == b"machine code"
    assert make.count == 2
    assert files(folder) == []
    assert "other users can write to" in caplog.text
    assert "QUIRE_CACHE_DIR" in caplog.text
    assert len(caplog.records) == 1, "each library would say it again"


def test_a_folder_that_cannot_be_made_costs_the_cache_only(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert cached(("a",), Maker(), tmp_path / "file" / "kernels") == b"machine code"
    assert "not cached" in caplog.text


def test_a_file_that_cannot_be_written_leaves_nothing_half_made(folder, monkeypatch, caplog):
    def refuse(source, _):
        raise OSError(errno.ENOSPC, "no space left", source)

    monkeypatch.setattr(os, "replace", refuse)
    assert cached(("a",), Maker(), folder) == b"machine code"
    assert cached(("b",), Maker(), folder) == b"machine code"
    assert files(folder) == []
    (record,) = caplog.records  # though the files have other names
    assert f"no space left in {folder}" in record.getMessage()


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


def test_another_compilers_code_is_found_when_it_does_not_matter(folder):
    kept = keep(("a",), b"code", ".so", folder, compiler="GCC 12")
    assert find(("a",), ".so", folder, compiler="GCC 12") == kept
    assert find(("a",), ".so", folder, compiler="GCC 13") is None
    assert find(("a",), ".so", folder, compiler=None) == kept
    assert find(("b",), ".so", folder, compiler=None) is None


def test_nothing_is_found_where_others_can_write(folder):
    keep(("a",), b"code", ".so", folder)
    folder.chmod(0o777)
    assert find(("a",), ".so", folder) is None


@pytest.mark.parametrize(
    ("mode", "is_used"), [(0o755, True), (0o777, False), (0o1777, True), (0o1775, True)]
)
def test_a_folder_that_others_could_replace_is_not_used(tmp_path, mode, is_used, caplog):
    above = tmp_path / "above"
    folder = above / "kernels"
    keep(("a",), b"code", ".so", folder)
    above.chmod(mode)
    assert (find(("a",), ".so", folder) is not None) == is_used
    assert ("and replace" in caplog.text) != is_used


def test_links_are_resolved_before_the_owner_is_checked(tmp_path):
    above, link = tmp_path / "above", tmp_path / "link"
    keep(("a",), b"code", ".so", above / "kernels")
    link.symlink_to(above / "kernels")
    assert find(("a",), ".so", link).parent == above / "kernels"
    above.chmod(0o777)
    assert find(("a",), ".so", link) is None


def test_folders_above_are_made_for_the_user_alone(tmp_path):
    before = os.umask(0)
    try:
        keep(("a",), b"code", ".so", tmp_path / "one" / "two" / "kernels")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "one" / "two").stat().st_mode) == 0o700


def test_a_user_without_a_home_has_no_cache(monkeypatch, caplog):
    for name in ("QUIRE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does without an entry
    assert find(("a",), ".so") is None
    assert cached_with_suffix(("a",), Maker(), ".so") == b"machine code"
    assert "home directory" in caplog.text
    assert len(caplog.records) == 1


def test_a_file_that_is_removed_meanwhile_is_made_again(folder, monkeypatch):
    gone = folder / "gone.bin"
    monkeypatch.setattr(compiled_cache, "find", lambda *_: gone)
    assert cached(("a",), Maker(), folder) == b"machine code"


@pytest.mark.parametrize(
    ("owner", "group", "is_used"),
    [
        (1234, 1234, True),
        (1234, 0, False),
        (compiled_cache.NOBODY_UID, compiled_cache.NOBODY_UID, False),
    ],
)
def test_a_group_of_the_user_alone_may_write_above(owner, group, is_used, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    there = os.stat_result((stat.S_IFDIR | 0o775, 0, 0, 2, owner, group, 0, 0, 0, 0))
    assert compiled_cache._is_protected(there) == is_used


NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


@NEEDS_ROOT
def test_a_folder_of_the_system_is_used(folder, monkeypatch):
    keep(("a",), b"code", ".so", folder)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert find(("a",), ".so", folder) is not None


@NEEDS_ROOT
def test_a_folder_of_another_user_is_not_used(folder):
    keep(("a",), b"code", ".so", folder)
    os.chown(folder, 1234, -1)
    assert find(("a",), ".so", folder) is None


def test_what_a_killed_process_left_is_removed_when_it_is_old(folder):
    keep(("a",), b"code", ".so", folder)
    old, fresh = folder / "old.part", folder / "fresh.part"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    keep(("b",), b"code", ".so", folder)
    assert not old.exists()
    assert fresh.exists()


def test_a_full_disk_leaves_nothing_half_made(folder, monkeypatch, caplog):
    real = os.fdopen

    def full(handle, mode):
        os.close(handle)
        return real(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr(os, "fdopen", full)
    assert cached(("a",), Maker(), folder) == b"machine code"
    assert files(folder) == []
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("mode", "is_trusted"),
    [(0o700, True), (0o755, True), (0o770, False), (0o720, False), (0o702, False)],
)
def test_a_folder_is_trusted_where_only_its_owner_writes(folder, mode, is_trusted):
    folder.mkdir()
    folder.chmod(mode)
    make = Maker()
    cached(("a",), make, folder)
    cached(("a",), make, folder)
    assert make.count == (1 if is_trusted else 2)
    assert bool(files(folder)) is is_trusted
