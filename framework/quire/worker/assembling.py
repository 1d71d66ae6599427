"""Put the parts of a worker's steps together: samplers, the runner, and what it captures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from quire.compose.composition import Composition
from quire.compose.kernel_choice import graph_sizes
from quire.compose.sampler_choice import fused_steps
from quire.errors import PluginLoadError, RefusedError
from quire.interfaces.attention import KVBackend
from quire.interfaces.model import Model
from quire.interfaces.sampling import LogitsProcessor, Sampler, Stage
from quire.plugins.loading import Registries
from quire.worker.batch.slots import SlotTables
from quire.worker.graphs.cpu_graphs import CPUGraphs
from quire.worker.graphs.graph_capture import step_capture
from quire.worker.loading.adapter_manager import AdapterManager
from quire.worker.loading.weight_loading import as_module
from quire.worker.memory.device_memory import CudaMeter, enough_memory
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling.sampling_pipeline import SamplingPipeline

logger = logging.getLogger(__name__)


def build_pipeline(
    composition: Composition, registries: Registries, tables: SlotTables
) -> SamplingPipeline:
    """Import and build the samplers.

    Raises:
        PluginLoadError: One is not what it declares.
    """
    vocab_size = composition.description.vocab_size
    steps: list[tuple[Stage, LogitsProcessor]] = []
    draws: list[Sampler] = []
    for choice in composition.samplers:
        step = registries.samplers.load(choice.entry)(vocab_size, tables.device)
        stage = choice.entry.capabilities.stage
        if isinstance(step, Sampler) and stage == "sample":
            draws.append(step)
        elif isinstance(step, LogitsProcessor) and stage != "sample":
            steps.append((stage, step))
        else:
            raise PluginLoadError(
                f"sampler {choice.name!r} declares stage {stage!r} and is a "
                f"{type(step).__name__}: `sample` needs a Sampler, the others a LogitsProcessor"
            )
    return SamplingPipeline(
        steps,
        draws[0],  # it stands last in the composition, as it does in the pipeline
        tables,
        [str(choice) for choice in composition.samplers],
        fused=fused_steps(composition.samplers),
        kernels=composition.kernels,
    )


def build_runner(
    model: Model,
    backends: Sequence[KVBackend],
    tables: SlotTables,
    pipeline: SamplingPipeline,
    adapters: AdapterManager | None,
    composition: Composition,
    max_num_batched_tokens: int,
) -> ModelRunner:
    """Build the runner; with Triton kernels, one that gathers its inputs on the device."""
    names = map(str, (composition.model, *composition.attention_backends))
    device_inputs = None
    if composition.kernels == "triton":
        from quire.worker.batch.device_inputs import DeviceInputs  # loads Triton

        device_inputs = DeviceInputs(
            tables,
            [backend.shape.block_size for backend in backends],
            max_num_batched_tokens,
        )
    runner = ModelRunner(
        model,
        backends,
        tables,
        pipeline,
        adapters,
        composition.description,
        " with ".join(names),
        device_inputs,
    )
    if composition.tracing_unavailable_reason is None:
        runner.recorded = CPUGraphs(as_module(model), backends, tables)
    return runner


def capture_graphs(
    runner: ModelRunner, composition: Composition, *, is_asked_for: bool = False
) -> None:
    """Capture the runner's decode steps, as many as were chosen.

    Args:
        runner: Gets them.
        composition: What was chosen.
        is_asked_for: Whether the user set how large they may be; if not, a part that cannot be
            captured is no error: steps are then launched kernel by kernel.

    Raises:
        CapacityError: There is not enough memory.
        RefusedError: A part of a step that the user asked for cannot be captured.
    """
    if runner.device_inputs is None or not composition.max_graph_requests:
        return
    from quire.worker.graphs.decode_graphs import DecodeGraphs  # loads Triton

    device = runner.tables.device
    free_bytes = _free_bytes(device)
    way_out = "lower gpu_memory_utilization or max_cuda_graph_size, start with --enforce-eager"
    with enough_memory("the logits of CUDA graphs", device, way_out):
        graphs = DecodeGraphs(
            runner.device_inputs,
            runner.pipeline,
            graph_sizes(composition.max_graph_requests),
            composition.description.vocab_size,
        )
    has_adapters = runner.adapters is not None
    head = runner.model.compute_logits
    try:
        graphs.capture(
            step_capture(device), runner.hidden_states_of, head, with_adapters=has_adapters
        )
    except RefusedError as refusal:
        if is_asked_for:
            raise
        logger.warning("every step is launched kernel by kernel, which is slower: %s", refusal)
        return
    runner.graphs = graphs
    if device.type == "cuda":
        logger.info("CUDA graphs took %.2f GB", (free_bytes - _free_bytes(device)) / 1e9)


def _free_bytes(device: torch.device) -> int:
    """Return what a GPU has left when torch keeps nothing unused; 0 for any other device."""
    if device.type != "cuda":
        return 0
    meter = CudaMeter(device)
    meter.held_bytes()
    return meter.free_bytes()
