"""Compiled kernels on disk, each under the hash of all it was made from, with a hash of itself.

A file is `sha256(code)` and then the code. One whose hash is wrong (cut short, or changed) is never
loaded but made again. Files appear whole or not at all. The folder is the user's own: what lies
there runs on the GPU, so a folder that others can write to is not used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "QUIRE_CACHE_DIR"
DIGEST_BYTES = 32


def default_folder() -> Path:
    """Return where compiled kernels of this user belong."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser() / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "quire" / "kernels"


def cached(parts: tuple[str, ...], make: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """Return what was made from these parts before, or make it and keep it.

    A folder that cannot be used costs the time to make it again, and a line in the log.
    """
    folder = default_folder() if folder is None else folder
    joined = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    path = folder / f"{hashlib.sha256(joined).hexdigest()}.cubin"
    try:
        _check_folder(folder)
    except OSError as error:
        logger.warning(
            "compiled kernels are not kept: %s; name another folder with %s", error, FOLDER_VARIABLE
        )
        return make()
    code = _read(path)
    if code is None:
        code = make()
        _keep(path, code)
    return code


def _check_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = folder.stat()
    if there.st_uid != os.getuid() or stat.S_IMODE(there.st_mode) & 0o022:
        raise PermissionError(f"others can write to {folder}")


def _read(path: Path) -> bytes | None:
    try:
        kept = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("the kept kernel %s cannot be read, so it is made again: %s", path, error)
        return None
    digest, code = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        logger.warning("the kept kernel %s is damaged, so it is made again", path)
        return None
    return code


def _keep(path: Path, code: bytes) -> None:
    """Write a file that nobody sees before it is whole."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    except OSError as error:
        logger.warning("the compiled kernel is not kept: %s", error)
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        logger.warning("the compiled kernel is not kept: %s", error)
