"""Compiled code on disk, under the hashes of what it was made from, of its maker and of itself.

A file is `<hash of the parts>-<hash of the maker>-<hash of the code><suffix>`, and holds the code
as it is, so that a library can be loaded from there. One whose code has another hash (cut short, or
changed) is never used but made again. Files appear whole or not at all. The folder is the user's
own, or the system's: what lies there runs in this process, so a folder is not used into which
others can write, or in whose place they can put another.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "QUIRE_CACHE_DIR"
HASH_DIGITS = 32  # of each part of a name
PART_SUFFIX = ".part"
ABANDONED_S = 3600
ROOT = 0
NOBODY = 65534  # whose are, inside a container, the files of users that it does not know


def default_folder() -> Path:
    """Return where compiled kernels of this user belong.

    Raises:
        FileNotFoundError: It would be in a home directory that is not known.
    """
    try:
        if named := os.environ.get(FOLDER_VARIABLE):
            return Path(named).expanduser() / "kernels"
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "quire" / "kernels"
    except RuntimeError as error:
        raise FileNotFoundError(f"{error} of the cache") from error


def cached(
    parts: tuple[str, ...], make: Callable[[], bytes], suffix: str, folder: Path | None = None
) -> bytes:
    """Return what was made from these parts before, or make it and keep it.

    A folder that cannot be used costs the time to make it again, and a line in the log.
    """
    path = find(parts, suffix, folder)
    if path is not None:
        with contextlib.suppress(OSError):  # somebody has removed it since
            return path.read_bytes()
    code = make()
    keep(parts, code, suffix, folder)
    return code


def find(
    parts: tuple[str, ...], suffix: str, folder: Path | None = None, maker: str | None = ""
) -> Path | None:
    """Return a whole and unchanged file that was made from these parts, if there is one.

    Args:
        parts: All that decides what the code does.
        suffix: How the names of such files end.
        folder: Where to look; None: where this user's are.
        maker: What it must have been made by; None: by anything.
    """
    try:
        folder = default_folder() if folder is None else folder
        trusted = _trusted(folder)
    except FileNotFoundError:  # nothing was kept yet, or `keep` says why
        return None
    except OSError as error:
        _COMPLAINTS.say(error, folder)
        return None
    by = "*" if maker is None else _hash(maker.encode())
    for path in sorted(trusted.glob(f"{_key(parts)}-{by}-*{suffix}")):
        if _is_whole(path, suffix):
            return path
    return None


def keep(
    parts: tuple[str, ...], code: bytes, suffix: str, folder: Path | None = None, maker: str = ""
) -> Path | None:
    """Write a file that nobody sees before it is whole; None if it cannot be kept."""
    try:
        folder = default_folder() if folder is None else folder
        _make_folder(folder)
        trusted = _trusted(folder)
        _remove_abandoned(trusted)
        handle, name = tempfile.mkstemp(dir=trusted, suffix=PART_SUFFIX)
    except OSError as error:
        _COMPLAINTS.say(error, folder)
        return None
    path = trusted / f"{_key(parts)}-{_hash(maker.encode())}-{_hash(code)}{suffix}"
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        _COMPLAINTS.say(error, trusted)
        return None
    return path


def _key(parts: tuple[str, ...]) -> str:
    return _hash(b"".join(hashlib.sha256(part.encode()).digest() for part in parts))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, all of them the user's own."""
    for missing in [each for each in (*reversed(folder.parents), folder) if not each.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def _trusted(folder: Path) -> Path:
    """Return a folder, links followed, into which nobody else can write, and not move it away.

    Raises:
        OSError: Somebody can, or it is not there.
    """
    folder = folder.resolve(strict=True)
    there = folder.stat()
    if there.st_uid not in (os.getuid(), ROOT) or there.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}")
    for above in folder.parents:
        if not _keeps_its_folders(above.stat()):
            raise PermissionError(f"others can write to {above}, so they can replace {folder}")
    return folder


def _keeps_its_folders(there: os.stat_result) -> bool:
    """Whether other users cannot move what the user and the system have in a folder.

    A group whose number is its owner's is taken for that user alone, as systems set it up.
    """
    if there.st_uid not in (os.getuid(), ROOT, NOBODY):
        return False
    is_private = there.st_gid == there.st_uid != NOBODY
    writers = there.st_mode & (0o002 if is_private else 0o022)
    return not writers or bool(there.st_mode & stat.S_ISVTX)


def _remove_abandoned(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for path in folder.glob(f"*{PART_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process may be quicker
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink()


def _is_whole(path: Path, suffix: str) -> bool:
    try:
        code = path.read_bytes()
        if path.name.removesuffix(suffix).rpartition("-")[2] == _hash(code):
            return True
        logger.warning("the kept kernel %s is damaged, so it is made again", path)
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("the kept kernel %s cannot be used, so it is made again: %s", path, error)
    return False


class _Complaints:
    """Warns of each reason once: every library of an engine meets the same ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def say(self, error: OSError, folder: Path | None = None) -> None:
        """Warn, unless it was said before. Names of files, which always differ, are left out."""
        reason = str(error) if error.strerror is None else f"{error.strerror} in {folder}"
        with self._lock:
            is_new = reason not in self._said
            self._said.add(reason)
        if is_new:
            logger.warning(
                "compiled kernels are not kept: %s; name another folder with %s",
                reason,
                FOLDER_VARIABLE,
            )


_COMPLAINTS = _Complaints()
