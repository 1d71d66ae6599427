"""LoRA adapters of a worker, in a fixed number of adapter slots that are evicted LRU first.

An adapter that a running request uses is not evicted. The modules that an adapter changes are
compared with the model before anything is written. A module that the model does not have is an
error: leaving it out would silently generate with the base model. Only those of parts that the
model leaves out, such as a media tower, are left out too. A pipeline stage checks the modules of
all stages, and loads its own.
"""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from quire.errors import AdapterError, QuireError, RefusedError
from quire.interfaces.lora import AdapterBatch, AdapterModule, LoRASource
from quire.interfaces.model import Model
from quire.interfaces.weight_rules import WeightPrefixes, WeightRules
from quire.layers.linear.linear_layers import ParallelLinear
from quire.messages import AdapterRef
from quire.worker.device.copies import upload
from quire.worker.device.device_faults import end_if_device_failed
from quire.worker.loading.weight_targets import as_module, weight_targets
from quire.worker.lora.base_model_check import BaseModel
from quire.worker.lora.fused_modules import AdaptedModule, AdaptedModules

logger = logging.getLogger(__name__)

MAX_LISTED = 4


class AdaptedMatrix(NamedTuple):
    """A matrix that adapters can change, as the layer and the part of it that hold the matrix."""

    layer: ParallelLinear
    part: str


class AdapterManager:
    """The adapters that one worker has loaded.

    Args:
        model: Model; its linear layers allocate memory for the adapters.
        source: Default LoRA source, which reads adapters from their folders.
        max_loras: Number of adapter slots.
        max_rank: Maximum rank of an adapter.
        sources: Further LoRA sources, by the name that an `AdapterRef` may give.
        base: Base model that adapters must be made for; None: adapters are not checked.
        whole_model: Model with the layers of all pipeline stages, of which only names and shapes
            are used; None: `model` has all layers.
    """

    def __init__(
        self,
        model: Model,
        source: LoRASource,
        max_loras: int,
        max_rank: int,
        *,
        sources: Mapping[str, LoRASource] | None = None,
        base: BaseModel | None = None,
        whole_model: Model | None = None,
    ) -> None:
        self.source = source
        self._sources = sources or {}
        self._base = base
        self.max_loras = max_loras
        self.max_rank = max_rank
        self.targets = adapted_matrices(model)
        whole_model = model if whole_model is None else whole_model
        self._whole_model = whole_model
        self._modules = AdaptedModules(
            _shapes(adapted_matrices(whole_model)),
            WeightRules(whole_model.weight_rules),
            WeightPrefixes(whole_model.weight_prefixes),
        )
        self._ignored = [re.compile(pattern) for pattern in whole_model.ignored_weights]
        self._layers = list(dict.fromkeys(target.layer for target in self.targets.values()))
        for layer in self._layers:
            layer.enable_lora(max_loras, max_rank)
        self._device = self._layers[0].context.device
        self._indexes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._last: tuple[tuple[tuple[int, ...], tuple[int, ...]], AdapterBatch | None] | None = (
            None
        )

    def load(self, ref: AdapterRef, in_use: Set[AdapterRef] = frozenset()) -> int:
        """Return the adapter's index in the layers' stacks; load it first if necessary.

        Args:
            ref: Adapter to load.
            in_use: Adapters that must not be evicted.

        Raises:
            AdapterError: The adapter cannot be used with this model or in this mode, has changed on
                disk since it was resolved, or all adapter slots are in use.
        """
        key = _key(ref)
        if key not in self._indexes:
            with _as_adapter_error(ref):
                matrices = self._read(ref)
                index = self._free_index({_key(other) for other in in_use}, ref)
                self._load_into(index, matrices)
            self._indexes[key] = index
        self._indexes.move_to_end(key)
        return self._indexes[key]

    def batch(self, indexes: Sequence[int], query_lens: Sequence[int]) -> AdapterBatch | None:
        """Return the rows of a step that use each adapter; None if no row uses any.

        Args:
            indexes: Adapter index of each request as returned by `load`, or -1.
            query_lens: Number of scheduled tokens of each request.
        """
        if not indexes or max(indexes) < 0:
            return None
        key = (tuple(indexes), tuple(query_lens))
        if self._last is None or self._last[0] != key:  # decode steps repeat
            self._last = (key, _batch(indexes, query_lens, self._device))
        return self._last[1]

    def _read(self, ref: AdapterRef) -> dict[str, AdapterModule]:
        """Return an adapter that fits the model, by the model's names of its matrices."""
        source = self._sources.get(ref.source, self.source)
        adapter = source.read(Path(ref.path), self.max_rank)
        if ref.content_hash and adapter.content_hash != ref.content_hash:
            raise AdapterError(
                f"adapter {ref.name!r}: its files have changed since it was registered; register "
                "it again"
            )
        modules = self._needed(ref.name, adapter.modules)
        found = self._find_modules(ref.name, modules)
        for module, matrices in modules.items():
            self._check_shape(ref.name, module, found[module], matrices)
            _check_finite(ref.name, module, matrices)
        if self._base is not None:
            self._base.check(ref, adapter.base_model)
        return _split(ref.name, found, modules)

    def _needed(self, name: str, modules: Mapping[str, AdapterModule]) -> dict[str, AdapterModule]:
        """Leave out the modules of parts whose weights the model leaves out."""
        needed = {
            module: matrices
            for module, matrices in modules.items()
            if not any(pattern.fullmatch(f"{module}.weight") for pattern in self._ignored)
        }
        if num_ignored := len(modules) - len(needed):
            logger.info(
                "adapter %r: %d module(s) of parts that the model leaves out are not loaded",
                name,
                num_ignored,
            )
        return needed

    def _find_modules(self, name: str, modules: Iterable[str]) -> dict[str, AdaptedModule]:
        found = {module: self._modules.find(module) for module in modules}
        unknown = [module for module, adapted in found.items() if adapted is None]
        if fixed := self._with_weights(unknown):
            raise AdapterError(
                f"adapter {name!r} changes {len(fixed)} module(s) that adapters cannot change in "
                f"this model: {', '.join(fixed[:MAX_LISTED])}; merge the adapter into the "
                "checkpoint's weights, or train one without these target_modules"
            )
        if unknown:
            raise AdapterError(
                f"adapter {name!r} changes {len(unknown)} module(s) that are not linear layers of "
                f"the model: {', '.join(unknown[:MAX_LISTED])}; was it trained on another base "
                "model?"
            )
        return {module: adapted for module, adapted in found.items() if adapted is not None}

    def _with_weights(self, modules: Iterable[str]) -> list[str]:
        """Return the modules that the model has, whether or not adapters can change them."""
        model = self._whole_model
        names = {*weight_targets(model), *model.tied_weights}
        return [
            module
            for module in modules
            if any({part, f"{part}.weight"} & names for part in self._modules.part_names(module))
        ]

    def _check_shape(
        self, name: str, module: str, adapted: AdaptedModule, matrices: AdapterModule
    ) -> None:
        rank = len(matrices.a) if matrices.a.dim() else 0
        if rank > self.max_rank:
            raise AdapterError(
                f"adapter {name!r} has rank {rank} at {module}; max_lora_rank is {self.max_rank}"
            )
        given = (tuple(matrices.a.shape), tuple(matrices.b.shape))
        expected = ((rank, adapted.num_columns), (sum(adapted.num_rows), rank))
        if given != expected:
            raise AdapterError(
                f"adapter {name!r} does not fit the model at {module}: A and B have shapes "
                f"{list(given[0])} and {list(given[1])}, the model needs {list(expected[0])} and "
                f"{list(expected[1])}; was it trained on another base model?"
            )

    def _free_index(self, in_use: Set[str], ref: AdapterRef) -> int:
        taken = set(self._indexes.values())
        for index in range(self.max_loras):
            if index not in taken:
                return index
        for key, index in self._indexes.items():
            if key not in in_use:
                del self._indexes[key]
                self._clear(index)
                return index
        raise AdapterError(
            f"adapter {ref.name!r} cannot be loaded: all {self.max_loras} adapter slots are in use "
            "(max_loras)"
        )

    def _load_into(self, index: int, matrices: Mapping[str, AdapterModule]) -> None:
        try:
            self._write(index, matrices)
        except BaseException:
            self._clear(index)  # a free slot must hold no adapter
            raise

    def _write(self, index: int, matrices: Mapping[str, AdapterModule]) -> None:
        changes: dict[ParallelLinear, dict[str, AdapterModule]] = {}
        for name, matrix in matrices.items():
            if name in self.targets:  # else another stage has it
                layer, part = self.targets[name]
                changes.setdefault(layer, {})[part] = matrix
        for layer, parts in changes.items():
            layer.set_adapter(index, parts)

    def _clear(self, index: int) -> None:
        for layer in self._layers:
            layer.set_adapter(index, {})


def adapted_matrices(model: Model) -> dict[str, AdaptedMatrix]:
    """Return the matrices that adapters can change, by the model's names.

    Raises:
        AdapterError: The model has no such matrices.
    """
    targets = {}
    for path, module in as_module(model).named_modules():
        if isinstance(module, ParallelLinear):
            parent = path.rpartition(".")[0]
            for part in module.slices:
                targets[f"{parent}.{part}" if parent else part] = AdaptedMatrix(module, part)
    if not targets:
        raise AdapterError(
            f"{type(model).__name__} has no linear layers of quire.layers, so LoRA cannot be used"
        )
    return targets


def _shapes(targets: Mapping[str, AdaptedMatrix]) -> dict[str, tuple[int, int]]:
    """Return the shape of each whole matrix, by its name."""
    return {
        name: (layer.slices[part].num_rows, layer.num_columns)
        for name, (layer, part) in targets.items()
    }


def _split(
    name: str, found: Mapping[str, AdaptedModule], modules: Mapping[str, AdapterModule]
) -> dict[str, AdapterModule]:
    """Return the matrices of an adapter by the model's names."""
    owners: dict[str, str] = {}
    matrices: dict[str, AdapterModule] = {}
    for module, fused in modules.items():
        for part, matrix in found[module].split(fused).items():
            if part in owners:
                raise AdapterError(
                    f"adapter {name!r} changes {part} twice, as {owners[part]} and as {module}"
                )
            owners[part], matrices[part] = module, matrix
    return matrices


@contextmanager
def _as_adapter_error(ref: AdapterRef) -> Iterator[None]:
    """Raise errors that an adapter causes as an AdapterError with its name.

    A control command may only raise a QuireError: any other error ends the engine.
    """
    try:
        yield
    except Exception as error:  # the edge of LoRA sources and their results
        end_if_device_failed(error)
        if isinstance(error, QuireError) and not isinstance(error, RefusedError):
            raise
        reason = error if isinstance(error, RefusedError) else type(error).__name__
        raise AdapterError(f"adapter {ref.name!r} cannot be used: {reason}") from error


def _check_finite(name: str, module: str, matrices: AdapterModule) -> None:
    for matrix in (matrices.a, matrices.b):
        is_valid = matrix.is_floating_point() and matrix.float().isfinite().all()  # float8, too
        if not is_valid:
            raise AdapterError(
                f"adapter {name!r} is damaged at {module}: A and B must hold finite floating-point "
                f"values, but one of them ({matrix.dtype}) does not"
            )
    if not math.isfinite(matrices.scale):
        raise AdapterError(
            f"adapter {name!r} has the non-finite scale {matrices.scale} at {module}"
        )


def _batch(indexes: Sequence[int], query_lens: Sequence[int], device: torch.device) -> AdapterBatch:
    index = np.repeat(np.array(indexes), query_lens)  # [T]
    used = sorted({adapter for adapter in indexes if adapter >= 0})
    rows = tuple((adapter, upload(np.flatnonzero(index == adapter), device)) for adapter in used)
    covers_all = len(used) == 1 and min(indexes) >= 0
    return AdapterBatch(upload(index, device), rows, covers_all)


def _key(ref: AdapterRef) -> str:
    return ref.content_hash or ref.path
