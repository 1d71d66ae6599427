"""Weights go from file to device tensor by tensor, after every name and shape has been checked.

The model says what it needs by its parameters, and how the checkpoint names that by
`packed_modules`; its layers say what they take besides, if it is there; the files say what they
have by their headers. Only when the two agree is anything read, so a wrong checkpoint costs no time
and no memory. A layer is made ready as soon as it has all its tensors: where that packs its weight,
no more than a few layers are ever there as they were read. While what packs them is still compiled,
reading goes on, and layers wait to be made ready, as long as they do not hold too much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
MAX_WAITING_BYTES = 2**31  # of weights that are read and not packed


def at_once() -> bool:
    """Let no layer wait to be made ready."""
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """Where a checkpoint tensor goes.

    Attributes:
        module: The layer that takes it.
        parameter: Its parameter there.
        part: Which part of a merged parameter; else the module's own last name.
    """

    module: nn.Module
    parameter: str
    part: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the checkpoint's tensor must have."""
        if isinstance(self.module, Layer):
            return self.module.checkpoint_shape(self.parameter, self.part)
        return tuple(self.module.get_parameter(self.parameter).shape)

    def load(self, tensor: Tensor) -> None:
        """Put the tensor in its place, cast and cut to this device's share."""
        if isinstance(self.module, Layer):
            self.module.load_weight(self.parameter, tensor, self.part)
        else:
            self.module.get_parameter(self.parameter).copy_(tensor)


@torch.no_grad()
def load_weights(
    model: Model,
    folder: Path,
    progress: Progress = silent,
    is_ready: Callable[[], bool] = at_once,
) -> int:
    """Fill the model from a checkpoint folder, and return the bytes that were read.

    Args:
        model: Whose layers are filled and made ready.
        folder: Where the checkpoint lies.
        progress: Told of the bytes that were read.
        is_ready: Whether a layer can be made ready without a wait; until then layers are only
            filled.

    Raises:
        CheckpointNotFoundError: There is no such folder, or no weights in it.
        UnsafeCheckpointError: There are only pickles.
        CheckpointCorruptError: Files are missing, cut short or damaged, or what they hold is not
            what the model needs: tensors missing, unexpected, or of another shape.
    """
    root = as_module(model)
    stored = read_headers(find_weight_files(folder))
    plan = match_weights(model, stored)
    total, done = sum(stored[name].num_bytes for name in plan), 0
    finishing = _Finishing(root, plan.values(), is_ready)
    for file, names in _by_file(plan, stored).items():
        for name, tensor in _read(file, names):
            target = plan[name]
            target.load(tensor)
            finishing.loaded(target, stored[name].num_bytes)
            done += stored[name].num_bytes
            progress(done, total)
    finishing.finish_rest()
    return done


@torch.no_grad()
def init_dummy_weights(model: Model, seed: int, is_ready: Callable[[], bool] = at_once) -> None:
    """Fill the model with seeded random weights that keep hidden states in a sane range.

    Args:
        model: Whose layers are filled and made ready.
        seed: Of the random numbers.
        is_ready: As `load_weights` takes it.
    """
    root = as_module(model)
    targets = _parameter_targets(root)
    device = next(root.parameters()).device  # where drawing billions of numbers takes a second
    generator = torch.Generator(device).manual_seed(seed)
    finishing = _Finishing(root, targets.values(), is_ready)
    for name, target in targets.items():
        parameter = target.module.get_parameter(target.parameter)
        shape = tuple(parameter.shape)
        values = torch.randn(shape, generator=generator, device=device)
        if len(shape) > 1 and "norm" not in name:
            parameter.copy_(values.mul_(shape[-1] ** -0.5))
        else:
            parameter.copy_(values.mul_(0.1).add_(1.0 if "norm" in name else 0.0))
        finishing.loaded(target, parameter.nbytes)
    finishing.finish_rest()


def held_weight_bytes(model: Model) -> int:
    """Return the bytes of a model's weights, as its layers have packed them.

    What can be computed again, such as a rotation's table, is a buffer that is not persistent, and
    counts as none.
    """
    kept = as_module(model).state_dict(keep_vars=True).values()
    return sum({id(tensor): tensor.nbytes for tensor in kept}.values())  # shared ones once


def weight_targets(model: Model) -> dict[str, Target]:
    """Return where each of the checkpoint's tensors goes, by the name that the model expects."""
    targets = {}
    for path, target in _parameter_targets(as_module(model)).items():
        owner_path, _, parameter = path.rpartition(".")
        parent, _, last = owner_path.rpartition(".")
        for part in model.packed_modules.get(last, (last,)):
            name = ".".join(filter(None, (parent, part, parameter)))
            targets[name] = replace(target, part=part)
    return targets


def optional_targets(model: Model) -> dict[str, Target]:
    """Return where tensors go that a checkpoint may have and need not, by their names."""
    return {
        name: Target(module, parameter, "")
        for path, module in as_module(model).named_modules()
        if isinstance(module, Layer)
        for name, parameter in module.optional_weights(path).items()
    }


def match_weights(model: Model, stored: Mapping[str, StoredTensor]) -> dict[str, Target]:
    """Return where each stored tensor goes; those that have no place in the model are left out.

    Raises:
        CheckpointCorruptError: Tensors are missing, unexpected, or of another shape; or two of them
            are for one place.
    """
    targets, optional = weight_targets(model), optional_targets(model)
    ignored = [re.compile(pattern) for pattern in model.ignored_weights]
    plan, given, unexpected = {}, set(), []
    for name, tensor in stored.items():
        ours = model.map_weight_name(name)
        if ours is None or any(pattern.fullmatch(name) for pattern in ignored):
            continue
        target = targets.get(ours) or optional.get(ours)
        if target is None:
            unexpected.append(name)
            continue
        _check_shape(tensor, target)
        plan[name] = target
        given.add(ours)
    _check_places(plan)
    _check_complete([name for name in targets if name not in given], unexpected)
    return plan


def as_module(model: Model) -> nn.Module:
    """Return the model as the `nn.Module` that it must be as well.

    Raises:
        TypeError: It is not; the model's author is to blame.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{type(model).__name__} must be a torch.nn.Module as well as a Model")
    return model


def _check_shape(tensor: StoredTensor, target: Target) -> None:
    is_number = tensor.shape == (1,) and target.shape == ()  # files have both
    if tensor.shape != target.shape and not is_number:
        raise CheckpointCorruptError(
            f"tensor {tensor.name} in {tensor.file.name} has shape {list(tensor.shape)}, but by "
            f"config.json it must be {list(target.shape)}"
        )


def _check_places(plan: Mapping[str, Target]) -> None:
    names: dict[Target, str] = {}
    for name, target in plan.items():
        if target in names:
            raise CheckpointCorruptError(
                f"tensors {names[target]} and {name} are both {target.parameter} of one layer; "
                "leave one out of the checkpoint"
            )
        names[target] = name


def _check_complete(missing: Sequence[str], unexpected: Sequence[str]) -> None:
    complaints = []
    if missing:
        complaints.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
    if unexpected:
        complaints.append(
            f"{len(unexpected)} tensors have no place in the model: {_listed(unexpected)}"
        )
    if complaints:
        raise CheckpointCorruptError("checkpoint and model differ; " + "; ".join(complaints))


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
    """Return each parameter by its path, as a whole; one that modules share once."""
    owners = dict(root.named_modules())
    paths = (path.rpartition(".") for path, _ in root.named_parameters())
    return {
        ".".join(filter(None, (owner, name))): Target(owners[owner], name, "")
        for owner, _, name in paths
    }


class _Finishing:
    """Makes each layer ready when its last tensor is loaded.

    Layers that share a parameter (a tied embedding and head) wait for each other's tensors. While
    `is_ready` says no, all wait, until they hold `MAX_WAITING_BYTES`.

    Args:
        root: The model.
        targets: One for each tensor that will be loaded.
        is_ready: Whether a layer can be made ready without a wait.
    """

    def __init__(
        self, root: nn.Module, targets: Iterable[Target], is_ready: Callable[[], bool]
    ) -> None:
        self._layers = [module for module in root.modules() if isinstance(module, Layer)]
        sharers: dict[int, list[Layer]] = {}  # by parameter
        for layer in self._layers:
            for parameter in layer.parameters(recurse=False):
                sharers.setdefault(id(parameter), []).append(layer)
        groups = (layers for layers in sharers.values() if len(layers) > 1)
        self._waits_for: dict[nn.Module, list[Layer]] = {layer: [layer] for layer in self._layers}
        for layers in groups:  # two groups with a layer in common become one
            joined = {other for layer in layers for other in self._waits_for[layer]}
            group = [layer for layer in self._layers if layer in joined]
            self._waits_for |= dict.fromkeys(group, group)
        self._is_ready = is_ready
        self._waiting: dict[Layer, None] = {}  # for `is_ready`, in their order
        self._waiting_bytes = 0
        self._num_missing = Counter(target.module for target in targets)

    def loaded(self, target: Target, num_bytes: int) -> None:
        """Note one tensor; layers that have all of theirs are made ready, in order."""
        self._num_missing[target.module] -= 1
        self._waiting_bytes += num_bytes
        layers = self._waits_for.get(target.module, [])
        if not any(self._num_missing[layer] for layer in layers):
            self._waiting |= dict.fromkeys(layers)
        if self._waiting and (self._is_ready() or self._waiting_bytes > MAX_WAITING_BYTES):
            self._finish(self._waiting)

    def finish_rest(self) -> None:
        """Make ready what still waits, and what no tensor was loaded for."""
        self._finish(self._waiting)
        self._finish(layer for layer in self._layers if layer in self._waits_for)

    def _finish(self, layers: Iterable[Layer]) -> None:
        for layer in list(layers):
            layer.finish_loading()
            self._waits_for.pop(layer, None)
        self._waiting.clear()
        self._waiting_bytes = 0
