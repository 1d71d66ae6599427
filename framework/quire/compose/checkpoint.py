"""Checkpoint lookup: find the files of a model and read its config, without the weights.

A checkpoint is a folder in the layout of Hugging Face, or a GGUF file, whose metadata has what the
small files of such a folder have: its `folder` is the path of the file then.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import is_gguf
from quire.compose.gguf.model_config import config_of
from quire.compose.gguf.small_files import small_file
from quire.compose.gguf.split_files import gguf_paths, read_files
from quire.compose.gguf.wording import contents, with_metadata_keys
from quire.compose.hubs.hub_download import download
from quire.compose.missing_model import GGUF_SUFFIX, missing_model, missing_path
from quire.compose.mistral_params import PARAMS, config_from_params
from quire.config import ModelSettings
from quire.errors import CheckpointCorruptError, CheckpointNotFoundError, UnsupportedModelError
from quire.interfaces.checkpoint import CheckpointSource, ShippedCheckpoint
from quire.plugins.registry import Entry, Registry

CONFIG = "config.json"
MAX_CONFIG_BYTES = 4 * 2**20
WEIGHT_FILES = ("*.safetensors",)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Files of a model.

    Attributes:
        name: Name or path as given by the user.
        folder: Path of its folder, or of its GGUF file.
        config: Content of its config.json.
        adapters: LoRA adapters that a plugin ships with it, by name.
        entry: Registry entry of the plugin that ships it; None if no plugin does.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    adapters: Mapping[str, Path] = field(default_factory=dict)
    entry: Entry | None = None

    @property
    def architecture(self) -> str:
        """The first of the config's `architectures`.

        Raises:
            CheckpointCorruptError: The config names no architecture.
        """
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise CheckpointCorruptError(
                f"{self.folder / CONFIG} names no architecture; `architectures` must be a list "
                'such as ["Qwen3ForCausalLM"]'
            )
        return str(names[0])

    @property
    def contents(self) -> str | None:
        """What a GGUF file contains, in words; None: it is a folder."""
        return contents(read_files(self.folder)) if self.folder.is_file() else None

    def explained(self, error: UnsupportedModelError) -> UnsupportedModelError:
        """Return an error about the config; of a GGUF file, it names the keys of the metadata."""
        if not self.folder.is_file():
            return error
        return UnsupportedModelError(with_metadata_keys(str(error), read_files(self.folder)))


def find_checkpoint(
    settings: ModelSettings, shipped: Registry[CheckpointSource], with_weights: bool = True
) -> Checkpoint:
    """Find the checkpoint that the settings name: a shipped name, a path, or a hub id.

    `owner/name/FILE.gguf` is a file of a model on a hub.

    Args:
        settings: Model settings, with the name.
        shipped: Checkpoints that plugins ship. A folder of the same name takes precedence only if
            it is a checkpoint; `./NAME` is always the folder.
        with_weights: Whether the weights are downloaded as well.

    Raises:
        CheckpointNotFoundError: No checkpoint has that name.
        CheckpointCorruptError: Its config.json, or its GGUF file, is missing or broken.
        UnsupportedModelError: Its GGUF file is of a kind that is not supported.
        PluginError: The plugin that ships the checkpoint cannot be loaded.
    """
    name = settings.model
    folder = os.path.expanduser(name)
    is_shipped = name in shipped and not os.path.isfile(os.path.join(folder, CONFIG))
    entry = shipped.entry(name) if is_shipped else None
    if entry is not None:
        found = shipped.load(entry)()
    elif os.path.isdir(folder):
        found = ShippedCheckpoint(Path(folder))
    elif os.path.isfile(folder):
        found = ShippedCheckpoint(_gguf_file(Path(folder)))
    elif _looks_like_path(name):
        raise missing_path(name)
    else:
        found = ShippedCheckpoint(_from_hub(settings, with_weights, shipped))
    return Checkpoint(name, found.folder, read_config(found.folder), found.adapters, entry)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config: `config.json`, or what Mistral's `params.json` or a GGUF file stands for.

    Args:
        folder: Path of the folder, or of the GGUF file.

    Raises:
        CheckpointCorruptError: The file is missing, damaged, too large, or not a JSON object.
        UnsupportedModelError: `params.json` or the GGUF file has what cannot be read.
    """
    if folder.is_file():
        return config_of(read_files(folder))
    path = config_file(folder)
    config = _read_object(path)
    return config_from_params(config) if path.name == PARAMS else config


def config_bytes(folder: Path) -> bytes:
    """Return the bytes of a checkpoint's config, which identify it.

    Raises:
        CheckpointCorruptError: There is none.
    """
    if folder.is_file():
        return json.dumps(read_config(folder)).encode()
    return config_file(folder).read_bytes()


def config_file(folder: Path) -> Path:
    """Return the path of a folder's config.

    Raises:
        CheckpointCorruptError: There is none.
    """
    for name in (CONFIG, PARAMS):
        if (folder / name).is_file():
            return folder / name
    if files := sorted(file.name for file in folder.glob("*.gguf")):
        raise CheckpointCorruptError(
            f"{folder} has no {CONFIG}, but GGUF files; give the path of one: {folder / files[0]}"
        )
    raise CheckpointCorruptError(f"{folder} has no {CONFIG}; is the folder complete?")


def weight_paths(folder: Path) -> list[Path]:
    """Return the paths of the files with a checkpoint's weights, in a fixed order."""
    if folder.is_file():
        return gguf_paths(folder)
    return sorted(path for pattern in WEIGHT_FILES for path in folder.glob(pattern))


def small_file_text(folder: Path, name: str) -> str | None:
    """Return the text of one of the files beside the weights; None if there is none.

    Args:
        folder: Path of the folder, or of the GGUF file, whose metadata has the content of some.
        name: Name in the layout of Hugging Face, such as "tokenizer.json".

    Raises:
        CheckpointError: The GGUF file cannot be read, or not as this file.
        OSError: The file cannot be read.
        ValueError: It is not UTF-8.
    """
    if folder.is_file():
        return small_file(folder, name)
    path = folder / name
    return path.read_text("utf-8") if path.is_file() else None


def _read_object(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointCorruptError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorruptError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointCorruptError(f"{path} must contain a JSON object")
    return config


def _gguf_file(file: Path) -> Path:
    """Return the path of a file, which must be GGUF."""
    if is_gguf(file):
        return file
    if file.suffix == GGUF_SUFFIX:
        read_files(file)  # says what is wrong with it
    raise CheckpointNotFoundError(
        f"{file} is a file, and not a GGUF file; give the folder that contains it"
    )


def _looks_like_path(name: str) -> bool:
    if _hub_file(name) is not None:
        return False
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    return is_path or name.endswith(GGUF_SUFFIX)


def _hub_file(name: str) -> tuple[str, str] | None:
    """Return the hub id and the file that `owner/name/FILE.gguf` may mean; None: it is neither."""
    model, _, file = name.rpartition("/")
    is_path = name.startswith((".", "/", "~")) or not {*name}.isdisjoint("\\*?[")
    is_file = model.count("/") == 1 and file.endswith(GGUF_SUFFIX)
    return (model, file) if is_file and not is_path else None


def _from_hub(settings: ModelSettings, with_weights: bool, shipped: Iterable[str]) -> Path:
    model, file = _hub_file(settings.model) or (settings.model, None)
    try:
        folder = download(
            model,
            settings.revision,
            with_weights=with_weights,
            with_code=settings.trust_remote_code and file is None,
            from_modelscope=settings.use_modelscope,
            gguf=file,
        )
        return folder if file is None else folder / file
    except CheckpointNotFoundError as error:
        raise missing_model(settings.model, shipped, error) from error
