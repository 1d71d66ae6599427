"""One device's worker: build the model, load it, allocate its cache, run its steps."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import torch

from quire.composition import Composition
from quire.config import Settings
from quire.errors import CapacityError, PluginLoadError, SettingsError
from quire.interfaces.attention import AttentionBackend, AttentionShape
from quire.interfaces.executor import Worker
from quire.interfaces.kv_cache import KVCacheSpec, KVGroup, KVPlan
from quire.interfaces.model import Model
from quire.interfaces.sampling import DrawStep, LogitsStep, Stage
from quire.layers.attention import Attention
from quire.layers.context import LayerContext
from quire.layers.parallel import TensorParallelGroup
from quire.layers.prepacked import Prepacked
from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl, WorkerInfo
from quire.plugins import Registries
from quire.worker.adapters import AdapterManager
from quire.worker.kv_store import KVStoreHost, build_kv_store
from quire.worker.loading import as_module, init_dummy_weights, load_weights
from quire.worker.memory import available_bytes, keep_freed_memory
from quire.worker.model_runner import ModelRunner
from quire.worker.progress import loading_progress
from quire.worker.sampling import SamplingPipeline
from quire.worker.slots import SlotTables

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

logger = logging.getLogger(__name__)


class ModelWorker(Worker):
    """The worker of one rank.

    Args:
        settings: What the user asked for.
        composition: What was chosen.
        registries: Where the chosen names are resolved.
        group: The devices that share each layer; this one's rank is in it.
    """

    def __init__(
        self,
        settings: Settings,
        composition: Composition,
        registries: Registries,
        group: TensorParallelGroup,
    ) -> None:
        self.settings = settings
        self.composition = composition
        self.registries = registries
        self.group = group
        self.device = _device(composition.device)
        self.dtype = TORCH_DTYPES[composition.dtype]
        self._model: Model | None = None
        self._runner: ModelRunner | None = None
        self._adapters: AdapterManager | None = None
        self._kv_store: KVStoreHost | None = None

    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""
        if self.settings.model.threads is not None:
            torch.set_num_threads(self.settings.model.threads)
        started = time.perf_counter()
        self._import_parts()
        self._model = self._build_model()
        self._adapters = self._build_adapters(self._model)
        num_params = self.composition.description.num_params // self.group.size
        weight_bytes = num_params * self.dtype.itemsize
        logger.info("the model is ready on %s, %.2f s", self.device, time.perf_counter() - started)
        return WorkerInfo(
            device=str(self.device),
            dtype=self.composition.dtype,
            weight_bytes=weight_bytes,
            available_kv_bytes=available_bytes(self.device),
            is_asynchronous=self.device.type == "cuda",
        )

    def allocate(self, plan: KVPlan) -> None:
        """Allocate the KV cache, bind it to the layers, and prepare the slot tables."""
        if self._model is None:
            raise RuntimeError("allocate before load")
        memory = self._allocate_tensors(plan)
        backends: list[AttentionBackend] = []
        backend_groups: list[int] = []
        for index in range(len(plan.groups)):
            bound = self._bind_group(plan, index, memory, len(backends))
            backends += bound
            backend_groups += [index] * len(bound)
        tables = SlotTables(
            self.settings.scheduler.max_num_seqs,
            plan.max_model_len,
            [group.spec.blocks_needed(plan.max_model_len) for group in plan.groups],
            self.composition.sampler_fields,
            self.device,
            backend_groups,
        )
        if self.device.type == "cpu":
            keep_freed_memory()
        pipeline = self._build_pipeline(tables)
        computed_by = f"{self.composition.model} with {self.composition.attention_backend}"
        self._runner = ModelRunner(
            self._model, backends, tables, pipeline, self._adapters, computed_by
        )
        if (choice := self.composition.kv_store) is not None:
            options = self.settings.cache.store_options
            self._kv_store = build_kv_store(choice, options, plan, memory, backends)

    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step, and what a KV store moves beside it."""
        if self._kv_store is not None:
            self._kv_store.begin_step(plan)
        self._ready_runner().execute(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the draw of a launched step's tokens."""
        self._ready_runner().sample(plan_id, masks)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of a step."""
        result = self._ready_runner().collect(plan_id)
        if self._kv_store is None:
            return result
        return msgspec.structs.replace(result, transfers=self._kv_store.report())

    def control(self, command: WorkerControl) -> None:
        """Do something between two steps.

        Raises:
            SettingsError: LoRA is off.
            AdapterError: An adapter to load cannot be used.
        """
        if self._adapters is None:
            raise SettingsError("LoRA is off; start with --enable-lora")
        self._adapters.load(command.adapter, frozenset())

    def shutdown(self) -> None:
        """Let go of the model and the cache."""
        if self._kv_store is not None:
            self._kv_store.shutdown()
        self._kv_store = None
        self._runner = self._model = self._adapters = None

    def _ready_runner(self) -> ModelRunner:
        if self._runner is None:
            raise RuntimeError("the worker has no KV cache yet, or was shut down")
        return self._runner

    def _import_parts(self) -> None:
        """Import what will be needed after the weights, so that a broken part fails first."""
        if self.composition.description.kv_layers:
            self.registries.attention_backends.load(self.composition.attention_backend.entry)
        for choice in self.composition.samplers:
            self.registries.samplers.load(choice.entry)

    def _build_model(self) -> Model:
        composition = self.composition
        description = replace(composition.description, max_model_len=composition.max_model_len)
        model_class = self.registries.models.load(composition.model.entry)
        model = model_class(description, self._layer_context())  # type: ignore[call-arg]
        if self.settings.model.load_format == "dummy":
            init_dummy_weights(model, self.settings.model.dummy_seed)
        else:
            with loading_progress(composition.checkpoint.name) as progress:
                load_weights(model, composition.checkpoint.folder, progress)
        return model

    def _layer_context(self) -> LayerContext:
        description = self.composition.description
        quantization = None
        if description.quantization is not None:
            method = self.registries.quantizations.get(description.quantization)
            quantization = method.from_config(description.config["quantization_config"])
        return LayerContext(
            dtype=self.dtype,
            device=self.device,
            tp=self.group,
            quantization=quantization,
            prepack=Prepacked.is_available(self.dtype, self.device),
            batch_invariant=self.settings.model.batch_invariant,
        )

    def _build_adapters(self, model: Model) -> AdapterManager | None:
        choice = self.composition.lora_source
        if choice is None:
            return None
        source = self.registries.lora_sources.load(choice.entry)()
        lora = self.settings.lora
        return AdapterManager(model, source, lora.max_loras, lora.max_lora_rank)

    def _allocate_tensors(self, plan: KVPlan) -> dict[str, torch.Tensor]:
        """Allocate the cache; layers of several groups share bytes.

        Returns:
            By layer, uint8 `[num_blocks, page_bytes]`.
        """
        memory = {}
        for tensor in plan.tensors:
            raw = self._allocate_bytes(tensor.num_bytes).view(plan.num_blocks, -1)
            memory.update(dict.fromkeys(tensor.layer_names, raw))
        return memory

    def _bind_group(
        self, plan: KVPlan, index: int, memory: Mapping[str, torch.Tensor], num_backends: int
    ) -> list[AttentionBackend]:
        """Give each layer of a KV group its part of the cache, and a backend for its head shape.

        Args:
            plan: The memory of the cache.
            index: Of the group in the plan.
            memory: As `_allocate_tensors` returns it.
            num_backends: Those of earlier groups: a layer knows its backend by its place.

        Returns:
            The backends of this group: one for each head shape, none if there are no layers.
        """
        group = plan.groups[index]
        specs = dict(zip(group.layer_names, group.layer_specs, strict=True))
        backend_class = self.registries.attention_backends.load(
            self.composition.attention_backend.entry
        )
        bound: dict[AttentionShape, tuple[int, AttentionBackend]] = {}
        for name, layer in self._attention_layers(group):
            shape = self._attention_shape(plan, group, layer, memory[name].shape[1], specs[name])
            if shape not in bound:
                bound[shape] = (num_backends + len(bound), backend_class(shape))
            place, backend = bound[shape]
            pages = _own_pages(memory[name], specs[name])
            layer.bind(backend, backend_class.kv_view(pages, specs[name], plan.num_blocks), place)
        return [backend for _, backend in bound.values()]

    def _attention_shape(
        self, plan: KVPlan, group: KVGroup, layer: Attention, page_bytes: int, spec: KVCacheSpec
    ) -> AttentionShape:
        return AttentionShape(
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            block_size=spec.block_size,
            max_num_seqs=self.settings.scheduler.max_num_seqs,
            max_num_batched_tokens=self.settings.scheduler.max_num_batched_tokens,
            max_blocks_per_request=group.spec.blocks_needed(plan.max_model_len),
            dtype=self.dtype,
            device=self.device,
            page_bytes=None if page_bytes == spec.page_bytes else page_bytes,
            batch_invariant=self.settings.model.batch_invariant,
        )

    def _attention_layers(self, group: KVGroup) -> list[tuple[str, Attention]]:
        if self._model is None:
            raise RuntimeError("no model")
        every = dict(as_module(self._model).named_modules())
        layers = [(name, every.get(name)) for name in group.layer_names]
        wrong = [name for name, layer in layers if not isinstance(layer, Attention)]
        if wrong:
            raise PluginLoadError(
                f"model {self.composition.model.name!r} describes KV layers that it does not have "
                f"as quire.layers.Attention: {', '.join(wrong[:3])}"
            )
        return [(name, layer) for name, layer in layers if isinstance(layer, Attention)]

    def _allocate_bytes(self, num_bytes: int) -> torch.Tensor:
        try:
            return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            raise CapacityError(
                f"the KV cache of {num_bytes:,} bytes a layer does not fit on {self.device}; set "
                "kv_cache_memory_bytes or num_kv_blocks"
            ) from error

    def _build_pipeline(self, tables: SlotTables) -> SamplingPipeline:
        vocab_size = self.composition.description.vocab_size
        steps: list[tuple[Stage, LogitsStep]] = []
        draws: list[DrawStep] = []
        for choice in self.composition.samplers:
            step = self.registries.samplers.load(choice.entry)(vocab_size, self.device)
            stage = choice.entry.capabilities.stage
            if isinstance(step, DrawStep) and stage == "draw":
                draws.append(step)
            elif isinstance(step, LogitsStep) and stage != "draw":
                steps.append((stage, step))
            else:
                raise PluginLoadError(
                    f"sampler {choice.name!r} declares stage {stage!r} and is a "
                    f"{type(step).__name__}: `draw` needs a DrawStep, the others a LogitsStep"
                )
        # The draw stands last in the composition, as it does in the pipeline.
        return SamplingPipeline(
            steps, draws[0], tables, [str(c) for c in self.composition.samplers]
        )


def _own_pages(
    memory: torch.Tensor,  # [num_blocks, page_bytes]
    spec: KVCacheSpec,
) -> torch.Tensor:
    """Return the bytes that a layer keeps, as `AttentionBackend.kv_view` takes them."""
    if memory.shape[1] == spec.page_bytes:
        return memory.view(-1)
    return memory[:, : spec.page_bytes]


def _device(name: str) -> torch.device:
    """Return the torch device.

    Raises:
        CapacityError: This torch or this machine does not have it.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise CapacityError("device cuda was asked for, and this torch sees no CUDA device")
    return torch.device(name)
