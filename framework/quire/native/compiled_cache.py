"""Cache of compiled code on disk, keyed by hashes of its inputs, its compiler and the code itself.

A file is `<hash of the parts>-<hash of the compiler>-<hash of the code><suffix>`, and holds the
code unchanged, so that a library can be loaded from it. A file whose content has another hash
(truncated or changed) is never used; its code is made again. Files are written atomically. The code
runs in this process, so a folder is used only if it belongs to the user or the system, and if other
users can neither write to it nor replace it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from quire.native.logged_reasons import LoggedReasons

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "QUIRE_CACHE_DIR"
HASH_DIGITS = 32  # of each hash in a file name
PART_SUFFIX = ".part"
ABANDONED_S = 3600
ROOT = 0
NOBODY_UID = 65534  # owner, inside a container, of files of users that it does not map


def default_folder() -> Path:
    """Return the folder of this user's compiled kernels.

    Raises:
        FileNotFoundError: It is in a home directory that cannot be determined.
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
    """Return the cached code of these parts, or make it and write it to the cache.

    If the folder cannot be used, a warning is logged and the code is made each time.
    """
    path = find(parts, suffix, folder)
    if path is not None:
        with contextlib.suppress(OSError):  # it may have been removed in the meantime
            return path.read_bytes()
    code = make()
    keep(parts, code, suffix, folder)
    return code


def find(
    parts: tuple[str, ...], suffix: str, folder: Path | None = None, compiler: str | None = ""
) -> Path | None:
    """Return an intact file that was made from these parts, if there is one.

    Args:
        parts: All inputs that the code depends on, the compiler excepted.
        suffix: Suffix of the file name.
        folder: Folder of the cache; None: the user's default folder.
        compiler: Version of the compiler that made the code; None: any compiler.
    """
    try:
        folder = default_folder() if folder is None else folder
        trusted = _trusted(folder)
    except FileNotFoundError:  # nothing is cached yet, or `keep` logs the reason
        return None
    except OSError as error:
        _warn_once(error, folder)
        return None
    by = "*" if compiler is None else _hash(compiler.encode())
    for path in sorted(trusted.glob(f"{_key(parts)}-{by}-*{suffix}")):
        if _is_intact(path, suffix):
            return path
    return None


def keep(
    parts: tuple[str, ...], code: bytes, suffix: str, folder: Path | None = None, compiler: str = ""
) -> Path | None:
    """Write a file to the cache atomically, and return its path; None if that is not possible."""
    try:
        folder = default_folder() if folder is None else folder
        _make_folder(folder)
        trusted = _trusted(folder)
        _remove_abandoned(trusted)
        handle, name = tempfile.mkstemp(dir=trusted, suffix=PART_SUFFIX)
    except OSError as error:
        _warn_once(error, folder)
        return None
    path = trusted / f"{_key(parts)}-{_hash(compiler.encode())}-{_hash(code)}{suffix}"
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        _warn_once(error, trusted)
        return None
    return path


def _key(parts: tuple[str, ...]) -> str:
    return _hash(b"".join(hashlib.sha256(part.encode()).digest() for part in parts))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, all accessible to this user only."""
    for missing in [each for each in (*reversed(folder.parents), folder) if not each.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def _trusted(folder: Path) -> Path:
    """Return a folder with links resolved, after a check that other users cannot change it.

    Raises:
        OSError: Other users can write to it or replace it, or it does not exist.
    """
    folder = folder.resolve(strict=True)
    there = folder.stat()
    if there.st_uid not in (os.getuid(), ROOT) or there.st_mode & 0o022:
        raise PermissionError(f"other users can write to {folder}")
    for above in folder.parents:
        if not _is_protected(above.stat()):
            raise PermissionError(f"other users can write to {above} and replace {folder}")
    return folder


def _is_protected(there: os.stat_result) -> bool:
    """Return whether other users cannot move or replace the user's and the system's folders in it.

    A group whose id equals its owner's user id is taken for that user's private group.
    """
    if there.st_uid not in (os.getuid(), ROOT, NOBODY_UID):
        return False
    is_private = there.st_gid == there.st_uid != NOBODY_UID
    writers = there.st_mode & (0o002 if is_private else 0o022)
    return not writers or bool(there.st_mode & stat.S_ISVTX)


def _remove_abandoned(folder: Path) -> None:
    """Remove old partial files of processes that were killed while they wrote."""
    for path in folder.glob(f"*{PART_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink()


def _is_intact(path: Path, suffix: str) -> bool:
    try:
        code = path.read_bytes()
        if path.name.removesuffix(suffix).rpartition("-")[2] == _hash(code):
            return True
        logger.warning("the cached kernel %s is damaged; it is compiled again", path)
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("the cached kernel %s cannot be read; it is compiled again: %s", path, error)
    return False


def _warn_once(error: OSError, folder: Path | None = None) -> None:
    """Log a warning, unless its reason was logged before. File names are left out of it."""
    reason = str(error) if error.strerror is None else f"{error.strerror} in {folder}"
    if _LOGGED.is_new(reason):
        logger.warning(
            "compiled kernels are not cached: %s; set %s to another folder", reason, FOLDER_VARIABLE
        )


_LOGGED = LoggedReasons()
