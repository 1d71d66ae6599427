"""Weight loading: matches checkpoint tensors to parameters, and copies them tensor by tensor.

The parameters of the model, mapped to checkpoint names by `packed_modules`, are the required
tensors; layers may declare optional ones. They are compared with the headers of the files before
anything is read, so a wrong checkpoint costs no time and no memory.

A layer is finished as soon as all its tensors are loaded. Finishing may pack its weight, so only a
few layers hold unpacked weights at any time.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from quire.errors import CheckpointCorruptError
from quire.interfaces.model import Model
from quire.layers.layer import Layer
from quire.worker.loading.checkpoint_files import StoredTensor, find_weight_files, read_headers
from quire.worker.loading.progress import Progress, silent

MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a checkpoint tensor.

    Attributes:
        module: Layer that loads the tensor.
        parameter: Name of the layer's parameter.
        part: Name of the matrix inside a merged parameter, such as `k_proj` of qkv; for other
            parameters the last part of the module's path.
    """

    module: nn.Module
    parameter: str
    part: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that the checkpoint tensor must have."""
        if isinstance(self.module, Layer):
            return self.module.checkpoint_shape(self.parameter, self.part)
        return tuple(self.module.get_parameter(self.parameter).shape)

    def load(self, tensor: Tensor) -> None:
        """Copy the tensor to the parameter, cast and cut to this device's shard."""
        if isinstance(self.module, Layer):
            self.module.load_weight(self.parameter, tensor, self.part)
        else:
            self.module.get_parameter(self.parameter).copy_(tensor)


@torch.no_grad()
def load_weights(model: Model, folder: Path, progress: Progress = silent) -> int:
    """Load the model's weights from a checkpoint folder, and return the number of bytes read.

    Args:
        model: Model to load; its layers are finished as well.
        folder: Folder of the checkpoint.
        progress: Callback for the bytes read so far and in all.

    Raises:
        CheckpointNotFoundError: The folder does not exist, or has no weights.
        UnsafeCheckpointError: The folder has its weights only as pickles.
        CheckpointCorruptError: Files are missing, truncated or damaged, or their tensors are not
            those of the model: missing, unexpected, or of another shape.
    """
    root = as_module(model)
    stored = read_headers(find_weight_files(folder))
    plan = match_weights(model, stored)
    total, done = sum(stored[name].num_bytes for name in plan), 0
    finisher = _LayerFinisher(root, plan.values())
    for file, names in _by_file(plan, stored).items():
        for name, tensor in _read(file, names):
            target = plan[name]
            target.load(tensor)
            finisher.loaded(target)
            done += stored[name].num_bytes
            progress(done, total)
    finisher.finish_rest()
    return done


@torch.no_grad()
def init_dummy_weights(model: Model, seed: int) -> None:
    """Fill the model with seeded random weights that keep hidden states in a sane range.

    A tensor depends on the seed and its name alone, so workers have shards of the same model.

    Args:
        model: Model to fill; its layers are finished as well.
        seed: Seed of the random numbers.
    """
    root = as_module(model)
    targets = weight_targets(model)
    device = next(root.parameters()).device  # the fastest place to generate random numbers
    finisher = _LayerFinisher(root, targets.values())
    for name, target in targets.items():
        target.load(_dummy_tensor(name, target.shape, seed, device))
        finisher.loaded(target)
    finisher.finish_rest()


def _dummy_tensor(name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """Return random values for a checkpoint tensor: norms around one, biases around zero."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))
    values = torch.randn(shape, generator=generator, device=device)
    if len(shape) > 1 and "norm" not in name:
        return values.mul_(shape[-1] ** -0.5)
    return values.mul_(0.1).add_(1.0 if "norm" in name else 0.0)


def held_weight_bytes(model: Model) -> int:
    """Return the bytes of a model's weights, as its layers have packed them.

    Non-persistent buffers, such as the tables of a rotary embedding, do not count.
    """
    kept = as_module(model).state_dict(keep_vars=True).values()
    return sum({id(tensor): tensor.nbytes for tensor in kept}.values())  # shared ones once


def weight_targets(model: Model) -> dict[str, Target]:
    """Return the target of each required checkpoint tensor, by the name the model expects."""
    targets = {}
    for path, target in _parameter_targets(as_module(model)).items():
        owner_path, _, parameter = path.rpartition(".")
        parent, _, last = owner_path.rpartition(".")
        for part in model.packed_modules.get(last, (last,)):
            name = ".".join(filter(None, (parent, part, parameter)))
            targets[name] = replace(target, part=part)
    return targets


def optional_targets(model: Model) -> dict[str, Target]:
    """Return the target of each optional checkpoint tensor, by its name."""
    return {
        name: Target(module, parameter, "")
        for path, module in as_module(model).named_modules()
        if isinstance(module, Layer)
        for name, parameter in module.optional_weights(path).items()
    }


def match_weights(model: Model, stored: Mapping[str, StoredTensor]) -> dict[str, Target]:
    """Return the target of each stored tensor; tensors that the model ignores are left out.

    Raises:
        CheckpointCorruptError: Tensors are missing, unexpected or of another shape, or two of them
            have the same target.
    """
    targets, optional = weight_targets(model), optional_targets(model)
    ignored = [re.compile(pattern) for pattern in model.ignored_weights]
    plan, provided, unexpected = {}, set(), []
    for name, tensor in stored.items():
        model_name = model.map_weight_name(name)
        if model_name is None or any(pattern.fullmatch(name) for pattern in ignored):
            continue
        target = targets.get(model_name) or optional.get(model_name)
        if target is None:
            unexpected.append(name)
            continue
        _check_shape(tensor, target)
        plan[name] = target
        provided.add(model_name)
    _check_duplicates(plan)
    _check_complete([name for name in targets if name not in provided], unexpected)
    return plan


def as_module(model: Model) -> nn.Module:
    """Return the model as an `nn.Module`.

    Raises:
        TypeError: The model's class does not derive from `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{type(model).__name__} must be a torch.nn.Module as well as a Model")
    return model


def _check_shape(tensor: StoredTensor, target: Target) -> None:
    is_scalar = tensor.shape == (1,) and target.shape == ()  # scalars are stored as either
    if tensor.shape != target.shape and not is_scalar:
        raise CheckpointCorruptError(
            f"tensor {tensor.name} in {tensor.file.name} has shape {list(tensor.shape)}, but "
            f"config.json requires {list(target.shape)}"
        )


def _check_duplicates(plan: Mapping[str, Target]) -> None:
    names: dict[Target, str] = {}
    for name, target in plan.items():
        if target in names:
            raise CheckpointCorruptError(
                f"tensors {names[target]} and {name} are both {target.parameter} of one layer; "
                "remove one from the checkpoint"
            )
        names[target] = name


def _check_complete(missing: Sequence[str], unexpected: Sequence[str]) -> None:
    complaints = []
    if missing:
        complaints.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
    if unexpected:
        complaints.append(f"{len(unexpected)} tensors are not in the model: {_listed(unexpected)}")
    if complaints:
        raise CheckpointCorruptError(
            "the checkpoint does not fit the model: " + "; ".join(complaints)
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _by_file(
    plan: Mapping[str, Target], stored: Mapping[str, StoredTensor]
) -> dict[Path, list[str]]:
    files: dict[Path, list[str]] = {}
    for name in plan:
        files.setdefault(stored[name].file, []).append(name)
    return files


def _read(file: Path, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in names:
                yield name, tensors.get_tensor(name)
    except SafetensorError as error:
        raise CheckpointCorruptError(f"{str(file)!r} cannot be read: {error}") from error


def _parameter_targets(root: nn.Module) -> dict[str, Target]:
    """Return a target for each whole parameter by its path; shared parameters appear once."""
    owners = dict(root.named_modules())
    paths = (path.rpartition(".") for path, _ in root.named_parameters())
    return {
        ".".join(filter(None, (owner, name))): Target(owners[owner], name, "")
        for owner, _, name in paths
    }


class _LayerFinisher:
    """Finishes each layer when its last tensor is loaded.

    Layers that share a parameter (a tied embedding and head) wait for each other's tensors.

    Args:
        root: Model.
        targets: Targets of all tensors that will be loaded.
    """

    def __init__(self, root: nn.Module, targets: Iterable[Target]) -> None:
        self._layers = [module for module in root.modules() if isinstance(module, Layer)]
        layers_by_parameter: dict[int, list[Layer]] = {}  # by id of the parameter
        for layer in self._layers:
            for parameter in layer.parameters(recurse=False):
                layers_by_parameter.setdefault(id(parameter), []).append(layer)
        groups = (layers for layers in layers_by_parameter.values() if len(layers) > 1)
        self._waits_for: dict[nn.Module, list[Layer]] = {layer: [layer] for layer in self._layers}
        for layers in groups:  # groups with a common layer are merged
            joined = {other for layer in layers for other in self._waits_for[layer]}
            group = [layer for layer in self._layers if layer in joined]
            self._waits_for |= dict.fromkeys(group, group)
        self._num_missing = Counter(target.module for target in targets)

    def loaded(self, target: Target) -> None:
        """Count one loaded tensor, and finish the layers that are complete, in order."""
        self._num_missing[target.module] -= 1
        layers = self._waits_for.get(target.module, [])
        if not any(self._num_missing[layer] for layer in layers):
            self._finish(layers)

    def finish_rest(self) -> None:
        """Finish the layers without any tensor to load."""
        self._finish(layer for layer in self._layers if layer in self._waits_for)

    def _finish(self, layers: Iterable[Layer]) -> None:
        for layer in list(layers):
            layer.finish_loading()
            self._waits_for.pop(layer, None)
