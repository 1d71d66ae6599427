"""Weight loading: copies the tensors of a checkpoint to the layers of a model, one by one.

The plan of what goes where is made and checked before anything is read (`weight_plan.py`), so a
wrong checkpoint costs no time and no memory. A layer is finished as soon as all its tensors are
loaded. Finishing may pack its weight, so only a few layers hold unpacked weights at any time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from quire.interfaces.model import Model
from quire.interfaces.quantization import PreparedQuantization
from quire.layers.layer import Layer
from quire.layers.seeded_generator import seeded_generator
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers
from quire.worker.loading.formats.conversion import checkpoint_words, converted_tensors
from quire.worker.loading.progress import Progress, silent
from quire.worker.loading.tensor_reading import check_copies, read_tensors
from quire.worker.loading.weight_plan import WeightPlan, plan_weights
from quire.worker.loading.weight_targets import Target, as_module, weight_targets

NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


@torch.no_grad()
def load_weights(
    model: Model,
    folder: Path,
    progress: Progress = silent,
    *,
    config: Mapping[str, Any] = NO_CONFIG,
    prepared: PreparedQuantization | None = None,
) -> int:
    """Load the model's weights from a checkpoint folder, and return the number of bytes read.

    Args:
        model: Model to load; its layers are finished as well.
        folder: Folder of the checkpoint.
        progress: Callback for the bytes read so far and in all.
        config: The checkpoint's config, which names its format.
        prepared: Method that reads the checkpoint's quantized weights; None: there are none.

    Raises:
        CheckpointNotFoundError: The folder does not exist, or has no weights.
        UnsafeCheckpointError: The folder has its weights only as pickles.
        CheckpointCorruptError: Files are missing, truncated or damaged, or their tensors are not
            those of the model: missing, unexpected, or of another shape.
    """
    plan = check_weights(model, folder, config, prepared)
    check_copies(plan.copies)
    total, done = sum(item.tensor.num_bytes for item in plan.tensors), 0
    finisher = _LayerFinisher(
        as_module(model), chain.from_iterable(item.targets for item in plan.tensors)
    )
    for item, value in read_tensors(plan.tensors):
        for target in item.load(value):
            finisher.loaded(target)
        done += item.tensor.num_bytes
        progress(done, total)
    finisher.finish_rest()
    return done


def check_weights(
    model: Model,
    folder: Path,
    config: Mapping[str, Any],
    prepared: PreparedQuantization | None = None,
) -> WeightPlan:
    """Return the plan of what is loaded, from the headers of the files: names and shapes.

    The model may be on torch's device `meta`. The parameters and errors are those of
    `load_weights`.
    """
    stored = read_headers(find_weight_files(folder))
    tensors = converted_tensors(stored, config, prepared)
    return plan_weights(model, tensors, config, checkpoint_words(folder, config))


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
    generator = seeded_generator(int.from_bytes(digest, "little"), device)
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
