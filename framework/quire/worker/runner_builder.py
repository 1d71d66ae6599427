"""Assembly of a worker's parts: sampling pipeline, model runner and captured graphs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from quire.compose.choices.kernel_choice import graph_sizes
from quire.compose.choices.sampler_choice import fused_steps
from quire.compose.composition import Composition
from quire.errors import PluginLoadError
from quire.interfaces.attention import KVBackend
from quire.interfaces.model import Model
from quire.interfaces.sampling import LogitsProcessor, Sampler
from quire.interfaces.sampling import Stage as SamplingStage
from quire.layers.parallel import TensorParallelGroup
from quire.layers.vocabulary import VocabularyShard
from quire.worker.batch.slots import SlotTables
from quire.worker.failures import IsolateAlone, ReportFailures
from quire.worker.graphs.cpu_graphs import CPUGraphs, StageLayers
from quire.worker.graphs.graph_capture import step_capture
from quire.worker.lora.adapter_manager import AdapterManager
from quire.worker.memory.device_memory import CudaMeter, enough_memory
from quire.worker.model_runner import ModelRunner
from quire.worker.parts import WorkerParts
from quire.worker.sampling.opt_in_step import OptInStep
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire.worker.stage import Stage

logger = logging.getLogger(__name__)


def build_pipeline(
    parts: WorkerParts, tables: SlotTables, group: TensorParallelGroup, logprobs_mode: str
) -> SamplingPipeline:
    """Build the samplers, for this device's shard of the vocabulary.

    Raises:
        PluginLoadError: The class of a sampler does not match its declared stage.
    """
    composition = parts.composition
    vocab_size = composition.description.vocab_size
    steps: list[tuple[SamplingStage, LogitsProcessor]] = []
    samplers: list[Sampler] = []
    for choice, step_class in zip(composition.samplers, parts.samplers, strict=True):
        step = step_class(vocab_size, tables.device)
        stage = choice.entry.capabilities.stage
        if isinstance(step, Sampler) and stage == "sample":
            samplers.append(step)
        elif isinstance(step, LogitsProcessor) and stage != "sample":
            is_opt_in = choice.entry.capabilities.is_opt_in
            steps.append((stage, OptInStep(choice.name, step) if is_opt_in else step))
        else:
            raise PluginLoadError(
                f"sampler {choice.name!r} declares stage {stage!r} and is a "
                f"{type(step).__name__}: stage `sample` needs a Sampler, every other stage a "
                "LogitsProcessor"
            )
    return SamplingPipeline(
        steps,
        samplers[0],  # the last one in the composition, as in the pipeline
        tables,
        [str(choice) for choice in composition.samplers],
        fused=fused_steps(composition.samplers),
        kernels=composition.kernels.value,
        vocabulary=VocabularyShard(vocab_size, group),
        vocab_parallel=[
            index
            for index, choice in enumerate(composition.samplers)
            if choice.entry.capabilities.is_vocab_parallel
        ],
        counting=[
            index
            for index, choice in enumerate(composition.samplers)
            if choice.entry.capabilities.reads_counts
        ],
        states={
            index: states
            for index, choice in enumerate(composition.samplers)
            if (states := choice.entry.capabilities.states)
        },
        logprobs_mode=logprobs_mode,
    )


def build_runner(
    model: Model,
    backends: Sequence[KVBackend],
    tables: SlotTables,
    pipeline: SamplingPipeline,
    adapters: AdapterManager | None,
    composition: Composition,
    max_num_batched_tokens: int,
    group: TensorParallelGroup,
    stage: Stage,
) -> ModelRunner:
    """Build the runner; with Triton kernels it gathers step inputs on the device.

    One worker of several reports failures, and on the last stage its tokens are compared with those
    of the others.
    """
    names = map(str, (composition.model, *composition.attention_backends))
    device_inputs = None
    if composition.kernels.value == "triton":
        from quire.worker.batch.device_inputs import DeviceInputs  # loads Triton

        device_inputs = DeviceInputs(
            tables,
            [backend.shape.block_size for backend in backends],
            max_num_batched_tokens,
        )
    return ModelRunner(
        model,
        backends,
        tables,
        pipeline,
        adapters,
        composition.description,
        " with ".join(names),
        device_inputs,
        stage=stage,
        failures=IsolateAlone() if group.size * stage.count == 1 else ReportFailures(),
        has_digest=group.size > 1 and stage.is_last,
    )


def trace_graphs(runner: ModelRunner, composition: Composition, group: TensorParallelGroup) -> None:
    """Trace the runner's decode steps as CPU graphs, if the composition has some.

    All devices of the group have traced a step afterwards, or none has.
    """
    if not composition.cpu_graphs.value:
        return
    reason: str | None = (
        "the tensor-parallel ranks are on several machines, and what they exchange there cannot be "
        "replayed"
    )
    if group.is_traceable:
        graphs = _cpu_graphs(runner, group)
        if (reason := graphs.trace()) is None:
            runner.graphs = graphs
    if reason is not None:
        logger.info("decode steps have no CPU graphs and run through Python: %s", reason)


def _cpu_graphs(runner: ModelRunner, group: TensorParallelGroup) -> CPUGraphs:
    forward = runner.stage_forward
    layers = StageLayers(
        forward.compute,
        runner.model.compute_logits,
        runner.backends,
        runner.pipeline,
        example=forward.example,
        is_last=runner.stage.is_last,
    )
    return CPUGraphs(layers, runner.tables, group)


def capture_graphs(
    runner: ModelRunner,
    composition: Composition,
    group: TensorParallelGroup,
    *,
    is_required: bool = False,
) -> None:
    """Capture the runner's decode steps in the sizes of the composition.

    Either all devices of the group have captured steps afterwards, or none has.

    Args:
        runner: Runner that gets the captured steps.
        composition: Chosen parts, with the largest size to capture.
        group: Tensor-parallel group of the worker.
        is_required: Whether the user set the largest size. If not, a part that cannot be captured
            is no error: steps are then launched kernel by kernel.

    Raises:
        CapacityError: There is not enough memory.
        RefusedError: A part of a step cannot be captured, and the user set the largest size.
    """
    if runner.device_inputs is None or not composition.cuda_graphs.value:
        return
    from quire.worker.graphs.decode_graphs import DecodeGraphs  # loads Triton

    device = runner.tables.device
    free_bytes = _free_bytes(device)
    remedy = "lower gpu_memory_utilization or max_cuda_graph_size, start with --enforce-eager"
    with enough_memory("the logits of CUDA graphs", device, remedy):
        graphs = DecodeGraphs(
            runner.device_inputs,
            runner.pipeline,
            graph_sizes(composition.cuda_graphs.value),
            group,
            example=runner.stage_forward.example,
            is_last=runner.stage.is_last,
        )
    refusal = graphs.capture(
        step_capture(device),
        runner.compute,
        runner.model.compute_logits,
        with_adapters=runner.adapters is not None,
    )
    if refusal is not None:
        if is_required:
            raise refusal
        logger.warning(
            "CUDA graphs are off, and every step is launched kernel by kernel, which is slower: %s",
            refusal,
        )
        return
    runner.graphs = graphs
    if device.type == "cuda":
        logger.info("CUDA graphs took %.2f GB", (free_bytes - _free_bytes(device)) / 1e9)


def _free_bytes(device: torch.device) -> int:
    """Return the free bytes of a GPU once torch has freed unused memory; 0 for other devices."""
    if device.type != "cuda":
        return 0
    meter = CudaMeter(device)
    meter.held_bytes()
    return meter.free_bytes()
