"""Memory profiling: runs a step of the largest size to find the memory left for the KV cache."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from quire.compose.choices.kernel_choice import num_captures
from quire.compose.composition import Composition
from quire.compose.sizes.memory_profile import (
    MemoryProfile,
    captured_bytes,
    groups_of,
    least_cache_bytes,
    misfit,
)
from quire.config import Settings
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVCacheSpec
from quire.interfaces.model import Model
from quire.layers.attention.caching_layer import CachingLayer
from quire.layers.parallel import SingleDevice, TensorParallelGroup
from quire.layers.vocabulary import VocabularyShard
from quire.worker.batch.slots import SlotTables
from quire.worker.loading.kv_cache_binding import attention_shape
from quire.worker.loading.weight_targets import as_module
from quire.worker.lora.adapter_manager import AdapterManager
from quire.worker.memory.device_memory import MemoryMeter, enough_memory
from quire.worker.memory.largest_step import BackendKind, LargestStep
from quire.worker.parts import WorkerParts
from quire.worker.stage import WHOLE_MODEL, Stage
from quire.worker.stage_forward import StageForward

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on its device, with all that is known of the engine before the KV cache exists.

    Attributes:
        group: Devices that each layer is sharded over, with this one.
    """

    settings: Settings
    parts: WorkerParts
    model: Model
    adapters: AdapterManager | None
    device: torch.device
    dtype: torch.dtype
    stage: Stage = WHOLE_MODEL
    group: TensorParallelGroup = field(default_factory=SingleDevice)

    @property
    def composition(self) -> Composition:
        """The choices, with the reasons."""
        return self.parts.composition

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """KV-cache spec of each layer that has a KV cache, on all pipeline stages."""
        return self.parts.kv_specs

    @property
    def own_specs(self) -> list[KVCacheSpec]:
        """KV-cache specs of the layers of this pipeline stage."""
        modules = as_module(self.model).modules()
        own = {module.name for module in modules if isinstance(module, CachingLayer)}
        return [spec for spec in self.specs if spec.layer.name in own]


def gpu_cache_bytes(loaded: LoadedModel, meter: MemoryMeter) -> int:
    """Return the number of bytes of GPU memory available for the KV cache.

    Raises:
        CapacityError: There are too few; the message names the flags that would help.
    """
    cache = loaded.settings.cache
    profile = measure(loaded, meter)
    logger.info("memory of %s: %s", loaded.device, profile.summary(cache.gpu_memory_utilization))
    needed = cache.kv_cache_memory_bytes
    if needed is None:
        needed = least_cache_bytes(loaded.own_specs, loaded.settings)
    problem = misfit(profile, loaded.settings, needed)
    if problem is not None and cache.num_kv_blocks is None:
        raise CapacityError(problem)
    return max(0, profile.kv_bytes(cache.gpu_memory_utilization))


def measure(loaded: LoadedModel, meter: MemoryMeter) -> MemoryProfile:
    """Run steps of the largest size, and measure the memory of each part.

    Raises:
        CapacityError: A step does not fit, even without a KV cache.
    """
    scheduler, composition = loaded.settings.scheduler, loaded.composition
    num_requests, largest = scheduler.max_running, composition.cuda_graphs.value
    num_tokens = min(scheduler.max_num_batched_tokens, num_requests * composition.max_model_len)
    kinds = backend_kinds(loaded)
    weight_bytes = meter.held_bytes()
    remedy = "set a smaller max_num_batched_tokens or max_num_seqs"
    with enough_memory(f"a step of {num_tokens} tokens", loaded.device, remedy):
        step = _largest_step(loaded, kinds)
        table_bytes = meter.held_bytes() - weight_bytes  # with a step's input buffers
        forward_bytes = meter.peak_bytes(lambda: step.forward(num_tokens, num_requests))
        rows = step.forward(num_requests, num_requests)  # [R, hidden_size]
        sampling_bytes = 0
        if loaded.stage.is_last:
            sampling_bytes = meter.peak_bytes(lambda: step.sample(rows))
        graph_bytes = 0
        if largest:
            is_last = loaded.stage.is_last
            num_logits = len(_vocabulary(loaded).token_ids) if is_last else 0
            num_graphs = num_captures(composition, is_last_stage=is_last)
            graph_bytes = captured_bytes(num_graphs, largest, num_logits)
            decode = step.decode if is_last else partial(step.forward, largest)
            graph_bytes += meter.peak_bytes(lambda: decode(largest))
    held_bytes, total_bytes = meter.held_bytes(), meter.total_bytes()
    return MemoryProfile(
        total_bytes=total_bytes,
        other_bytes=max(0, total_bytes - meter.free_bytes() - held_bytes),
        weight_bytes=weight_bytes,
        forward_bytes=forward_bytes,
        sampling_bytes=sampling_bytes,
        workspace_bytes=workspace_bytes(loaded.specs, kinds),
        table_bytes=table_bytes,
        graph_bytes=graph_bytes,
    )


def backend_kinds(loaded: LoadedModel) -> dict[str, BackendKind]:
    """Return the backend class and shape of each layer that has a KV cache, by layer name."""
    modules = dict(as_module(loaded.model).named_modules())
    layers = ((spec, modules.get(spec.layer.name)) for spec in loaded.specs)
    return {
        spec.layer.name: _kind(loaded, spec, layer)
        for spec, layer in layers
        if isinstance(layer, CachingLayer)
    }


def workspace_bytes(specs: Sequence[KVCacheSpec], kinds: Mapping[str, BackendKind]) -> int:
    """Return the workspace bytes of all backends: each KV group has one per layer shape."""
    total = 0
    for leader, num_groups in groups_of(specs):
        names = [spec.layer.name for spec in specs if spec.key == leader.key]
        for kind in {kinds[name] for name in names if name in kinds}:
            total += num_groups * kind.backend_class.workspace_bytes(kind.shape)
    return total


def _kind(loaded: LoadedModel, spec: KVCacheSpec, layer: CachingLayer[Any]) -> BackendKind:
    shape = attention_shape(
        layer,
        spec,
        loaded.settings,
        loaded.composition,
        loaded.dtype,
        loaded.device,
        max_blocks=spec.blocks_needed(loaded.composition.max_model_len),
    )
    return BackendKind(loaded.parts.backend_class(spec.layer), shape)


def _slot_tables(loaded: LoadedModel) -> SlotTables:
    composition = loaded.composition
    return SlotTables(
        loaded.settings.scheduler.max_num_seqs,
        composition.max_model_len,
        [spec.blocks_needed(composition.max_model_len) for spec in _group_specs(loaded)],
        composition.sampler_fields,
        loaded.device,
        has_device_blocks=composition.kernels.value == "triton",
        vocab_size=composition.description.vocab_size,
        states=composition.sampler_states,
    )


def _device_inputs(loaded: LoadedModel, tables: SlotTables) -> object:
    """Return the device input buffers, allocated to be measured; None without kernels."""
    if loaded.composition.kernels.value != "triton":
        return None
    from quire.worker.batch.device_inputs import DeviceInputs  # loads Triton

    block_sizes = [spec.block_size for spec in _group_specs(loaded)]
    max_tokens = loaded.settings.scheduler.max_num_batched_tokens
    return DeviceInputs(tables, block_sizes, max_tokens)


def _group_specs(loaded: LoadedModel) -> list[KVCacheSpec]:
    """Return a spec for each expected KV group."""
    groups = groups_of(loaded.specs)
    return [spec for spec, num_groups in groups for _ in range(num_groups)]


def _largest_step(loaded: LoadedModel, kinds: Mapping[str, BackendKind]) -> LargestStep:
    composition, tables = loaded.composition, _slot_tables(loaded)
    vocab_size = composition.description.vocab_size
    samplers = [step_class(vocab_size, loaded.device) for step_class in loaded.parts.samplers]
    return LargestStep(
        loaded.model,
        kinds,
        samplers,
        tables,
        loaded.adapters,
        composition.max_model_len,
        _vocabulary(loaded),
        forward=StageForward(
            loaded.model, loaded.stage, composition.description, str(composition.model)
        ),
        resident=_device_inputs(loaded, tables),
    )


def _vocabulary(loaded: LoadedModel) -> VocabularyShard:
    return VocabularyShard(loaded.composition.description.vocab_size, loaded.group)
