"""Worker of one device: builds and loads the model, allocates the KV cache and runs steps.

A worker is one rank of a grid: it has a shard of each layer of one pipeline stage.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from quire.compose.sizes.weight_bytes import weight_bytes
from quire.config import Settings
from quire.errors import CapacityError, EngineDeadError
from quire.interfaces.executor import Worker
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.model import Model
from quire.layers.context import LayerContext
from quire.layers.linear.prepacked import Prepacked
from quire.layers.parallel import TensorParallelGroup
from quire.machine.pages import WEIGHT_PAGES
from quire.messages import WorkerInfo
from quire.worker.batch.slots import SlotTables
from quire.worker.device.block_copies import BlockCopier
from quire.worker.device.threads import THREADS
from quire.worker.first_steps import STEPS, STEPS_WITH_KERNELS, run_warm_up_steps
from quire.worker.kv_store_host import build_kv_store
from quire.worker.loading.kv_cache_binding import LayerBinding
from quire.worker.loading.progress import loading_progress
from quire.worker.loading.weight_loading import (
    check_weights,
    held_weight_bytes,
    init_dummy_weights,
    load_weights,
)
from quire.worker.lora.adapter_manager import AdapterManager
from quire.worker.lora.base_model_check import BaseModel, names_of
from quire.worker.memory.device_memory import (
    CudaMeter,
    enough_memory,
    free_unused_memory,
    host_cache_bytes,
    is_out_of_memory,
    keep_freed_memory,
    zeroed_bytes,
)
from quire.worker.memory.profiling import LoadedModel, gpu_cache_bytes
from quire.worker.model_runner import ModelRunner
from quire.worker.parts import WorkerParts
from quire.worker.runner_builder import (
    build_pipeline,
    build_runner,
    capture_graphs,
    trace_graphs,
)
from quire.worker.stage import WHOLE_MODEL, Stage

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

logger = logging.getLogger(__name__)


class ModelWorker(Worker):
    """Worker of one tensor-parallel rank and one pipeline stage.

    Args:
        settings: Settings of the engine, as given by the user.
        parts: Model, attention backends, samplers and the other parts that compute.
        group: Tensor-parallel group of the devices that split each layer, with this rank.
        stage: Pipeline stage of the worker.
        ranks_on_node: Number of the engine's workers that share the cores and memory of its node.
    """

    def __init__(
        self,
        settings: Settings,
        parts: WorkerParts,
        group: TensorParallelGroup,
        stage: Stage = WHOLE_MODEL,
        ranks_on_node: int = 1,
    ) -> None:
        self.settings = settings
        self.parts = parts
        self.composition = composition = parts.composition
        self.group = group
        self.stage = stage
        self._num_sharers = ranks_on_node * settings.parallel.data_parallel_size
        self.device = torch_device(composition.device)
        self.dtype = TORCH_DTYPES[composition.hidden_dtype]
        self._model: Model | None = None
        self._runner: ModelRunner | None = None
        self._adapters: AdapterManager | None = None

    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""
        if self.device.type == "cpu" or self.settings.model.threads is not None:
            THREADS.use(self.settings.model.threads, self._num_sharers)
        started = time.perf_counter()
        expected = weight_bytes(self.composition, self.group.size, self.stage.index)
        what = f"the model ({expected:,} bytes of weights)"
        try:
            with enough_memory(what, self.device, "free memory of the device"):
                model = self._model = self._build_model()
                self._adapters = self._build_adapters(model)
        finally:
            WEIGHT_PAGES.close()
        free_unused_memory(self.device)  # of the unpacked tensors
        held = held_weight_bytes(model)
        logger.info(
            "the model is ready on %s after %.2f s; its weights take %.2f GB",
            self.device,
            time.perf_counter() - started,
            held / 1e9,
        )
        return WorkerInfo(
            kv_bytes=[self._cache_bytes(model)],
            is_asynchronous=self.device.type == "cuda",
        )

    def allocate(self, plans: Sequence[KVPlan]) -> ModelRunner:
        """Allocate the KV cache, bind it to the layers, and build the runner of the steps."""
        if self._model is None:
            raise RuntimeError("allocate before load")
        plan = plans[self.stage.index]
        memory = self._allocate_tensors(plan)
        what = "memory for attention workspaces and slot tables, beside the KV cache,"
        with enough_memory(what, self.device, "lower gpu_memory_utilization"):
            runner = self._runner = self._build_runner(self._model, plan, memory)
        runner.block_copier = BlockCopier(memory.values(), runner.backends)
        self._warm_up_and_capture(runner, plan)
        if (choice := self.composition.kv_store) is not None:
            options = self.settings.cache.store_options
            own = replace(plan, rank=plan.rank + self.group.rank)
            runner.kv_store = build_kv_store(choice, options, own, memory, runner.backends)
        return runner

    def check_health(self) -> None:
        """Check that the worker was not shut down: it lives as long as its process.

        Raises:
            EngineDeadError: It was shut down, or has not loaded a model.
        """
        if self._model is None:
            raise EngineDeadError("the worker is not running: it has no model")

    def shutdown(self) -> None:
        """Drop the model, the KV cache and the captured graphs, and free their memory."""
        if self._runner is not None:
            self._runner.shutdown()
        self._runner = self._model = self._adapters = None
        free_unused_memory(self.device)

    def _build_runner(
        self, model: Model, plan: KVPlan, memory: Mapping[str, torch.Tensor]
    ) -> ModelRunner:
        """Bind the layers, and build the model runner."""
        binding = LayerBinding(self.settings, self.parts, self.device, self.dtype)
        backends, backend_groups = binding.bind(model, plan, memory)
        tables = SlotTables(
            self.settings.scheduler.max_num_seqs,
            plan.max_model_len,
            [group.spec.blocks_needed(plan.max_model_len) for group in plan.groups],
            self.composition.sampler_fields,
            self.device,
            backend_groups,
            has_device_blocks=self.composition.kernels.value == "triton",
            vocab_size=self.composition.description.vocab_size,
            states=self.composition.sampler_states,
        )
        if self.device.type == "cpu":
            keep_freed_memory()
        pipeline = build_pipeline(
            self.parts, tables, self.group, self.settings.sampling.logprobs_mode
        )
        return build_runner(
            model,
            backends,
            tables,
            pipeline,
            self._adapters,
            self.composition,
            self.settings.scheduler.max_num_batched_tokens,
            self.group,
            self.stage,
        )

    def _warm_up_and_capture(self, runner: ModelRunner, plan: KVPlan) -> None:
        """Run warm-up steps, and capture or trace decode steps, before the first request.

        Raises:
            RefusedError: A part fails in a warm-up step.
        """
        longest = min(self.settings.scheduler.max_num_batched_tokens // 2, plan.max_model_len)
        with enough_memory("a warm-up step", self.device, "lower gpu_memory_utilization"):
            steps = STEPS_WITH_KERNELS if self.device.type == "cuda" else STEPS
            run_warm_up_steps(runner, max(1, longest), steps)
        is_required = self.settings.model.max_cuda_graph_size is not None
        capture_graphs(runner, self.composition, self.group, is_required=is_required)
        trace_graphs(runner, self.composition, self.group)

    def _loaded(self, model: Model) -> LoadedModel:
        return LoadedModel(
            settings=self.settings,
            parts=self.parts,
            model=model,
            adapters=self._adapters,
            device=self.device,
            dtype=self.dtype,
            stage=self.stage,
            group=self.group,
        )

    def _cache_bytes(self, model: Model) -> int:
        """Return the number of bytes available for the KV cache beside the weights."""
        if self.device.type != "cuda":
            return host_cache_bytes(self._num_sharers)
        return gpu_cache_bytes(self._loaded(model), CudaMeter(self.device))

    def _build_model(self) -> Model:
        is_dummy = self.settings.model.load_format == "dummy"
        try:
            model = self._make_model(self._layer_context())
        except (RuntimeError, OSError) as error:
            if is_out_of_memory(error) and not is_dummy:
                self._check_weights()
            raise
        if is_dummy:
            init_dummy_weights(model, self.settings.model.dummy_seed)
        else:
            checkpoint = self.composition.checkpoint
            with loading_progress(checkpoint.name) as progress:
                load_weights(
                    model,
                    checkpoint.folder,
                    progress,
                    config=self.composition.description.config,
                    prepared=self.parts.prepared,
                )
        return model

    def _check_weights(self) -> None:
        """Check a model that does not fit: its config may have sizes that the tensors have not.

        Raises:
            CheckpointCorruptError: The config contradicts the tensors.
        """
        checkpoint, config = self.composition.checkpoint, self.composition.description.config
        model = self._make_model(self._meta_context(self.stage.layers))
        check_weights(model, checkpoint.folder, config, self.parts.prepared)

    def _make_model(self, context: LayerContext) -> Model:
        """Build the model, with undefined weights."""
        composition = self.composition
        description = replace(composition.description, max_model_len=composition.max_model_len)
        return self.parts.model(description, context)  # type: ignore[call-arg]

    def _layer_context(self) -> LayerContext:
        return LayerContext(
            dtype=self.dtype,
            device=self.device,
            tp=self.group,
            quantization=self.parts.quantization,
            prepack=Prepacked.is_available(self.dtype, self.device),
            batch_invariant=self.settings.model.batch_invariant,
            expert_parallel=self.settings.parallel.enable_expert_parallel,
            layers=self.stage.layers,
            kernels=self.composition.kernels.value,
        )

    def _build_adapters(self, model: Model) -> AdapterManager | None:
        choice = self.composition.lora_source
        if choice is None:
            return None
        lora = self.settings.lora
        sources = self.parts.lora_sources
        base = BaseModel(names_of(self.composition.checkpoint), is_strict=lora.strict_adapters)
        return AdapterManager(
            model,
            sources[choice.name],
            lora.max_loras,
            lora.max_lora_rank,
            sources=sources,
            base=base,
            whole_model=self._whole_model(model),
        )

    def _whole_model(self, model: Model) -> Model:
        """Return a model with the layers of every stage; others than the own have no weights."""
        if self.stage.count == 1:
            return model
        return self._make_model(self._meta_context())

    def _meta_context(self, layers: range | None = None) -> LayerContext:
        """Return the settings of layers that have shapes only, without memory."""
        return LayerContext(
            dtype=self.dtype,
            device=torch.device("meta"),
            tp=self.group,
            expert_parallel=self.settings.parallel.enable_expert_parallel,
            layers=layers,
        )

    def _allocate_tensors(self, plan: KVPlan) -> dict[str, torch.Tensor]:
        """Allocate the KV cache; layers of several KV groups share one tensor.

        Returns:
            Tensor of each layer by its name, uint8 `[num_blocks, page_bytes]`.
        """
        memory = {}
        for tensor in plan.tensors:
            raw = self._allocate_bytes(tensor.num_bytes).view(plan.num_blocks, -1)
            memory.update(dict.fromkeys(tensor.layer_names, raw))
        return memory

    def _allocate_bytes(self, num_bytes: int) -> torch.Tensor:
        try:
            return zeroed_bytes(num_bytes, self.device)
        except (RuntimeError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            raise CapacityError(
                f"a KV cache tensor of {num_bytes:,} bytes does not fit on {self.device}; set a "
                "smaller kv_cache_memory_bytes or num_kv_blocks"
            ) from error


def torch_device(name: str) -> torch.device:
    """Return the torch device.

    Raises:
        CapacityError: This build of torch or this machine has no CUDA device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise CapacityError("device cuda was requested, but torch finds no CUDA device")
    return torch.device(name)
