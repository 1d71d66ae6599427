"""Download of a model by its id, from the Hugging Face hub or from ModelScope.

Of the weights only the files that belong to the checkpoint are downloaded: those of the index, or a
single file, or Mistral's own layout if there is nothing else. Code is downloaded only on demand.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from quire.compose.gguf.split_files import set_names
from quire.compose.hubs.code_files import fetch_code
from quire.errors import CheckpointNotFoundError

DESCRIPTION_FILES = ("*.json", "*.jinja", "tokenizer.model", "*.txt", "*.tiktoken")
WEIGHT_LAYOUTS = (
    ("model.safetensors",),
    ("model-*-of-*.safetensors",),
    ("consolidated.safetensors",),
    ("consolidated-*-of-*.safetensors",),
)
INDEXES = ("model.safetensors.index.json", "consolidated.safetensors.index.json")
MAX_LISTED = 20
NESTED = "*/*"  # files of other formats
MODELSCOPE_MISSING = "the package modelscope is not installed; run `pip install modelscope`"

logger = logging.getLogger(__name__)

Fetch = Callable[[Sequence[str]], Path]


def download(
    name: str,
    revision: str | None,
    *,
    with_weights: bool,
    with_code: bool = False,
    from_modelscope: bool = False,
    gguf: str | None = None,
) -> Path:
    """Return the folder of a model, whose missing files are downloaded.

    Args:
        name: Id of the model, `owner/name`.
        revision: Branch, tag or commit; None: the newest.
        with_weights: Whether the weights are needed.
        with_code: Whether the Python modules that the model's config.json names are needed. They
            are those of the same commit as the weights.
        from_modelscope: Whether to use ModelScope instead of the Hugging Face hub.
        gguf: Name of the GGUF file that is needed, also without weights: all is in it, and in the
            others of its set. None: the model is needed in the layout of Hugging Face.

    Raises:
        CheckpointNotFoundError: The download failed.
    """
    hub = "ModelScope" if from_modelscope else "the Hugging Face hub"
    logger.info("looking for model %s on %s", name, hub)
    started = time.monotonic()
    try:
        fetch, list_files = (_modelscope if from_modelscope else _hugging_face)(name, revision)
        folder = fetch(DESCRIPTION_FILES)
        if with_code:
            fetch_code(folder, fetch)
        if gguf is not None:
            names = set_names(gguf)
        else:
            names = weight_names(folder, list_files) if with_weights else []
        if names:
            fetch(names)
            logger.info("model %s is complete after %.1f s", name, time.monotonic() - started)
    except Exception as error:  # of the hub's client, and of the network libraries below it
        raise CheckpointNotFoundError(
            f"its download from {hub} failed: {_reason(error)}"
        ) from error
    return folder


def _reason(error: Exception) -> str:
    """Return the message in one line; of errors that are not quire's own with their type."""
    message = " ".join(str(error).split())
    is_own = isinstance(error, CheckpointNotFoundError)
    return message if is_own else f"{type(error).__name__}: {message}"


def weight_names(folder: Path, list_files: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names of the files with a model's weights.

    Args:
        folder: Folder with the model's other files.
        list_files: Function that lists all files of the model; called only if no index names them.

    Raises:
        CheckpointNotFoundError: The weights are in GGUF files, of which one has to be chosen.
    """
    for index in INDEXES:
        if (folder / index).is_file():
            return indexed_names(folder / index)
    names = [name for name in list_files() if "/" not in name]
    for patterns in WEIGHT_LAYOUTS:
        found = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
        if found:
            return sorted(found)
    if gguf := sorted(name for name in names if name.endswith(".gguf")):
        raise CheckpointNotFoundError(
            f"it has GGUF files; add the name of one to the id, such as /{gguf[0]}: "
            f"{', '.join(gguf[:MAX_LISTED])}"
        )
    return []


def indexed_names(index: Path) -> list[str]:
    """Return the files that an index names; none if it is broken, which the loader reports."""
    try:
        names = {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(name for name in names if "/" not in name and "\\" not in name)


def _hugging_face(name: str, revision: str | None) -> tuple[Fetch, Callable[[], Iterable[str]]]:
    from quire.compose.hubs.hugging_face import HuggingFaceModel  # loads its client

    model = HuggingFaceModel(name, revision)
    return model.fetch, model.list_files


def _modelscope(name: str, revision: str | None) -> tuple[Fetch, Callable[[], Iterable[str]]]:
    """Return functions that fetch and list files; ModelScope's client resumes and locks itself."""
    try:
        from modelscope import snapshot_download
        from modelscope.hub.api import HubApi
    except ImportError as error:
        raise RuntimeError(MODELSCOPE_MISSING) from error

    def fetch(patterns: Sequence[str]) -> Path:
        options: dict[str, Any] = {} if revision is None else {"revision": revision}
        return Path(
            snapshot_download(
                name, allow_patterns=list(patterns), ignore_patterns=[NESTED], **options
            )
        )

    def list_files() -> list[str]:
        found = HubApi().get_model_files(name, revision=revision, recursive=False)
        return [str(entry["Path"]) for entry in found]

    return fetch, list_files
