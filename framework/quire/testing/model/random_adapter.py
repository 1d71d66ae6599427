"""A random LoRA adapter in peft's layout on every linear layer, and its merged weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from quire.interfaces.lora import AdapterModule
from quire.interfaces.model import Model
from quire.interfaces.weight_rules import WeightPrefixes, WeightRules
from quire.worker.lora.adapter_manager import adapted_matrices
from quire.worker.lora.fused_modules import AdaptedModule, AdaptedModules

RANK = 4
SCALE = 2.0
GAIN = 0.5


class RandomAdapter:
    """An adapter that changes every linear layer of a model that an adapter can change.

    Args:
        model: Model, of which only names and shapes are used.
        weights: Tensors of its checkpoint.

    Attributes:
        modules: Matrices by the checkpoint's name of the module.
        merged: Tensors of the checkpoint that they change, with the change added.

    Raises:
        AdapterError: The model has no linear layers of `quire.layers`.
        AssertionError: None of them has a weight in the checkpoint.
    """

    def __init__(self, model: Model, weights: Mapping[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(13)
        self.modules: dict[str, AdapterModule] = {}
        self.merged: dict[str, Tensor] = {}
        for name, module in _linear_modules(model, weights):
            num_rows, weight = sum(module.num_rows), weights[f"{name}.weight"]
            a = torch.randn(RANK, module.num_columns, generator=generator)
            b = torch.randn(num_rows, RANK, generator=generator) * GAIN
            matrices = AdapterModule(a * module.num_columns**-0.5, b * RANK**-0.5, SCALE)
            change = SCALE * (matrices.b @ matrices.a)
            self.modules[name] = matrices
            self.merged[f"{name}.weight"] = weight + (
                change.T if _is_turned(module, weight) else change
            )
        assert self.modules, (
            "no matrix of the checkpoint belongs to a linear layer of the model: its names, or "
            "the model's weight_rules, are wrong"
        )

    def write(self, folder: Path) -> Path:
        """Write the adapter, and return its folder."""
        folder.mkdir(parents=True)
        settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK}
        (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        tensors = {}
        for name, module in self.modules.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = module.a
            tensors[f"base_model.model.{name}.lora_B.weight"] = module.b
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder


def _linear_modules(
    model: Model, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, AdaptedModule]]:
    """Yield the modules of the checkpoint that adapters can change, with their names."""
    shapes = {
        name: (layer.slices[part].num_rows, layer.num_columns)
        for name, (layer, part) in adapted_matrices(model).items()
    }
    modules = AdaptedModules(
        shapes, WeightRules(model.weight_rules), WeightPrefixes(model.weight_prefixes)
    )
    for name, tensor in weights.items():
        module, _, suffix = name.rpartition(".")
        found = modules.find(module) if suffix == "weight" and tensor.dim() == 2 else None
        if found is not None:
            yield module, found


def _is_turned(module: AdaptedModule, weight: Tensor) -> bool:
    """Return whether a weight is stored as `[in, out]`."""
    shape = (sum(module.num_rows), module.num_columns)
    return tuple(weight.shape) != shape or (module.rule is not None and module.rule.transposed)
