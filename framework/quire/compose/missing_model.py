"""The error of a model that is nowhere: where it was looked for, and what has a similar name."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from quire.errors import CheckpointNotFoundError

GGUF_SUFFIX = ".gguf"
CACHED = "models--"  # prefix of a model's folder in the hub's cache
MAX_SHOWN = 5
SIMILARITY = 0.7


def missing_path(name: str) -> CheckpointNotFoundError:
    """Return the error of a path where there is no folder, and no GGUF file."""
    path = Path(name).expanduser()
    is_gguf = name.endswith(GGUF_SUFFIX)
    beside = _gguf_files(path.parent) if is_gguf else _folders(path.parent)
    near = get_close_matches(path.name, beside, 1, SIMILARITY)
    hint = f"; did you mean {str(Path(name).parent / near[0])!r}?" if near else ""
    what = "GGUF file" if is_gguf else "model folder"
    return CheckpointNotFoundError(f"no such {what}: {name}{hint}")


def missing_model(
    name: str, shipped: Iterable[str], hub_error: CheckpointNotFoundError
) -> CheckpointNotFoundError:
    """Return the error of a name that is neither shipped, nor a folder, nor on the hub.

    Args:
        name: Name as given by the user.
        shipped: Names of the checkpoints that plugins ship.
        hub_error: Error of the download.
    """
    shipped = list(shipped)
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    near = get_close_matches(name, _known_names(shipped), 1, SIMILARITY)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return CheckpointNotFoundError(
        f"there is no model {shown!r}{hint}\n"
        f"  It is no checkpoint that a plugin ships: {_listed(shipped)}.\n"
        f"  It is no folder: {os.path.join(os.getcwd(), shown)} does not exist.\n"
        f"  As the id of a model on a hub: {hub_error}."
    )


def _known_names(shipped: list[str]) -> list[str]:
    return [*shipped, *_folders(Path()), *_cached_models()]


def _cached_models() -> list[str]:
    """Return the ids of the models in the cache of the Hugging Face hub."""
    from huggingface_hub import constants

    names = _folders(Path(constants.HF_HUB_CACHE))
    return [
        name.removeprefix(CACHED).replace("--", "/") for name in names if name.startswith(CACHED)
    ]


def _folders(parent: Path) -> list[str]:
    try:
        return sorted(path.name for path in parent.iterdir() if path.is_dir())
    except OSError:  # it does not exist, or may not be read
        return []


def _gguf_files(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.glob(f"*{GGUF_SUFFIX}"))


def _listed(shipped: list[str]) -> str:
    if len(shipped) > MAX_SHOWN:
        return f"{len(shipped)} names, see `quire plugins list`"
    return f"there is {', '.join(shipped)}" if shipped else "there is none"
