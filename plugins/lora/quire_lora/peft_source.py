"""LoRA adapters in peft's layout: a folder or hub id with a config and one safetensors file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from quire.errors import AdapterError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource
from quire_lora.peft_config import CONFIG, PeftConfig, read_config

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."
SUFFIXES = {".lora_A.weight": "a", ".lora_B.weight": "b"}
HUB_ID = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


class PeftSource(LoRASource):
    """Source of adapters that `PeftModel.save_pretrained` wrote, for linear layers."""

    def resolve(self, name: str) -> Path:
        """Return the folder for a path or a hub id, written `owner/name` or `owner/name@revision`.

        Raises:
            AdapterError: There is no such folder or hub id.
        """
        folder = Path(name).expanduser()
        if folder.is_dir():
            return folder.resolve()
        hub_id = HUB_ID.fullmatch(name)
        if hub_id is None:
            raise AdapterError(f"there is no adapter folder {name!r}, and it is not a hub id")
        return _from_hub(hub_id["id"], hub_id["revision"])

    def content_hash(self, folder: Path) -> str:
        """Return the SHA-256 of config and weights.

        Raises:
            AdapterError: A file is missing.
        """
        digest = hashlib.sha256()
        for file in (folder / CONFIG, weights_file(folder)):
            with _open(file) as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def read(self, folder: Path, max_rank: int) -> Adapter:
        """Read an adapter from its folder, on the CPU.

        Raises:
            AdapterError: It is broken, its rank is too large, or it uses an unsupported option.
        """
        config = read_config(folder)
        matrices = _read_matrices(weights_file(folder), max_rank)
        modules = {name: _module(name, pair, config) for name, pair in matrices.items()}
        return Adapter(modules, config.base_model, self.content_hash(folder))


def weights_file(folder: Path) -> Path:
    """Return the path of the adapter's weights.

    Raises:
        AdapterError: The file is missing, or there is only a pickle.
    """
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    if (folder / PICKLE).is_file():
        raise AdapterError(
            f"{str(folder)!r} has its weights only as {PICKLE}: a pickle can run code when loaded, "
            "so quire does not open it; save the adapter as safetensors"
        )
    raise AdapterError(f"{str(folder)!r} is not an adapter folder: it has no {WEIGHTS}")


def _from_hub(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise AdapterError(
            f"there is no adapter folder {repo_id!r}, and its download from the hub failed: {error}"
        ) from error


def _open(file: Path) -> Any:
    try:
        return file.open("rb")
    except OSError as error:
        raise AdapterError(f"{file} cannot be read: {error}") from error


def _read_matrices(file: Path, max_rank: int) -> dict[str, dict[str, Tensor]]:
    """Return A and B of each module, by the module name in the checkpoint."""
    matrices: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a mapping
                module, side = _parse(file, key)
                _check_shape(file, key, tensors.get_slice(key).get_shape(), side, max_rank)
                matrices.setdefault(module, {})[side] = tensors.get_tensor(key)
    except SafetensorError as error:
        raise AdapterError(f"{file} is damaged: {error}") from error
    except OSError as error:
        raise AdapterError(f"{file} cannot be read: {error}") from error
    if not matrices:
        raise AdapterError(f"{file} has no tensors")
    return matrices


def _parse(file: Path, key: str) -> tuple[str, str]:
    """Return the module name and the side, a or b, of a tensor name."""
    for suffix, side in SUFFIXES.items():
        if key.startswith(PREFIX) and key.endswith(suffix):
            return key.removeprefix(PREFIX).removesuffix(suffix), side
    raise AdapterError(
        f"{file}: tensor {key!r} is not part of a LoRA adapter on linear layers; embeddings, "
        "biases, DoRA and modules_to_save are not supported"
    )


def _check_shape(file: Path, key: str, shape: list[int], side: str, max_rank: int) -> None:
    if len(shape) != 2:
        raise AdapterError(f"{file}: tensor {key} has shape {shape}; expected a matrix")
    rank = shape[0] if side == "a" else shape[1]
    if not 1 <= rank <= max_rank:
        raise AdapterError(f"{file}: tensor {key} has rank {rank}; max_lora_rank is {max_rank}")


def _module(name: str, pair: Mapping[str, Tensor], config: PeftConfig) -> AdapterModule:
    if set(pair) != {"a", "b"}:
        missing = "lora_B" if "a" in pair else "lora_A"
        raise AdapterError(f"the adapter has only one of the two matrices of {name}: no {missing}")
    a, b = pair["a"], pair["b"]
    if a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"the two matrices of {name} have different ranks: shapes {list(a.shape)} and "
            f"{list(b.shape)}"
        )
    return AdapterModule(a, b, config.scale(name, a.shape[0]))
