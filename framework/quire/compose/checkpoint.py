"""Checkpoint lookup: find the folder of a model and read its config.json, without the weights."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.compose.hubs.hub_download import download
from quire.compose.missing_model import missing_folder, missing_model
from quire.compose.mistral_params import PARAMS, config_from_params
from quire.config import ModelSettings
from quire.errors import CheckpointCorruptError, CheckpointNotFoundError
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


def find_checkpoint(
    settings: ModelSettings, shipped: Registry[CheckpointSource], with_weights: bool = True
) -> Checkpoint:
    """Find the checkpoint that the settings name: a shipped name, a folder, or a hub id.

    Args:
        settings: Model settings, with the name.
        shipped: Checkpoints that plugins ship. A folder of the same name takes precedence only if
            it is a checkpoint; `./NAME` is always the folder.
        with_weights: Whether the weights are downloaded as well.

    Raises:
        CheckpointNotFoundError: No checkpoint has that name.
        CheckpointCorruptError: Its config.json is missing or broken.
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
        raise CheckpointNotFoundError(f"{name} is a file; give the folder that contains it")
    elif _looks_like_path(name):
        raise missing_folder(name)
    else:
        found = ShippedCheckpoint(_from_hub(settings, with_weights, shipped))
    return Checkpoint(name, found.folder, read_config(found.folder), found.adapters, entry)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a folder: `config.json`, or what Mistral's `params.json` stands for.

    Raises:
        CheckpointCorruptError: The file is missing, too large, or not a JSON object.
        UnsupportedModelError: `params.json` has a parameter that cannot be read.
    """
    path = config_file(folder)
    config = _read_object(path)
    return config_from_params(config) if path.name == PARAMS else config


def config_file(folder: Path) -> Path:
    """Return the path of a checkpoint's config.

    Raises:
        CheckpointCorruptError: There is none.
    """
    for name in (CONFIG, PARAMS):
        if (folder / name).is_file():
            return folder / name
    raise CheckpointCorruptError(f"{folder} has no {CONFIG}; is the folder complete?")


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


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def _from_hub(settings: ModelSettings, with_weights: bool, shipped: Iterable[str]) -> Path:
    try:
        return download(
            settings.model,
            settings.revision,
            with_weights=with_weights,
            with_code=settings.trust_remote_code,
            from_modelscope=settings.use_modelscope,
        )
    except CheckpointNotFoundError as error:
        raise missing_model(settings.model, shipped, error) from error
