"""Agreement of the processes of one engine: each composes by itself, and all must choose the same.

A process describes its choices in lines. The lines of a process on the same machine name folders;
those of a process on another machine, where the folders may differ, name contents only.
"""

import hashlib
import platform
from collections.abc import Sequence
from difflib import unified_diff
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import quire
from quire.compose.checkpoint import config_bytes, weight_paths
from quire.compose.composition import Composition
from quire.compose.gguf.header import is_gguf, read_header

HEADER_LENGTH_BYTES = 8  # of a safetensors file: the length of its JSON header
MAX_HEADER_BYTES = 100 * 2**20


def own_choices(composition: Composition, *, is_local: bool = True) -> list[str]:
    """Return the choices of this process, a line for each.

    Args:
        composition: Composition of this process.
        is_local: Whether to compare with a process on the same machine.
    """
    folder = composition.checkpoint.folder
    libraries = [f"Python {platform.python_version()}", f"torch {_version('torch')}"]
    parts = [" ".join(part) for part in composition.fingerprint()]
    if is_local:
        place = Path(quire.__file__).parent
        return [f"quire {quire.__version__} in {place}", *libraries, f"checkpoint {folder}", *parts]
    content = f"checkpoint {folder.name} with content {checkpoint_digest(folder)}"
    return [f"quire {quire.__version__}", *libraries, content, *parts]


def difference(expected: Sequence[str], found: Sequence[str], names: tuple[str, str]) -> str | None:
    """Return the difference of two processes' choices as lines, or None.

    Args:
        expected: Choices of one process.
        found: Choices of the other.
        names: Names of both processes, for people.
    """
    if list(expected) == list(found):
        return None
    return "\n".join(unified_diff(expected, found, *names, lineterm="", n=0))


def checkpoint_digest(folder: Path) -> str:
    """Return a digest of a checkpoint's config, and of the header and size of each weight file.

    The weights themselves are not read, which would take as long as loading them.
    """
    digest = hashlib.blake2b(config_bytes(folder), digest_size=8)
    for path in weight_paths(folder):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(_header(path))
    return digest.hexdigest()


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        if is_gguf(path):
            return file.read(read_header(path).num_bytes)
        length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        return file.read(min(length, MAX_HEADER_BYTES))


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
