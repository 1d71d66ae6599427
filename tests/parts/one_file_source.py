"""A LoRA source that is right: one safetensors file an adapter. Imports no torch until it reads."""

import json
from hashlib import sha256
from pathlib import Path

from quire.errors import AdapterError, SettingsError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource


class OneFile(LoRASource):
    """Adapters in one safetensors file each, with scales and base model in its header."""

    def __init__(self, root):
        self.root = root

    @classmethod
    def from_options(cls, options):
        if unknown := sorted(options.keys() - {"root"}):
            raise SettingsError(f"there is no option {unknown}")
        return cls(Path(options["root"]))

    def resolve(self, name):
        if not (self.root / name).is_dir():
            raise AdapterError(f"there is no adapter {name!r}")
        return self.root / name

    def content_hash(self, folder):
        return sha256((folder / "all").read_bytes()).hexdigest()

    def read(self, folder, max_rank):
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / "all", framework="pt") as file:
                told = json.loads(file.metadata()["told"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{folder} is damaged") from error
        if any(tensors[f"{name} a"].shape[0] > max_rank for name in told["scales"]):
            raise AdapterError(f"max_rank is {max_rank}")
        modules = {
            name: AdapterModule(tensors[f"{name} a"], tensors[f"{name} b"], scale)
            for name, scale in told["scales"].items()
        }
        return Adapter(modules, told["base_model"], self.content_hash(folder))


class HashesWithTorch(OneFile):
    """Wrong: a server hashes adapters, and has no torch."""

    def content_hash(self, folder):
        import torch.nn  # noqa: F401

        return super().content_hash(folder)
