"""Put the parts of a worker's steps together: samplers, the runner, and what it captures."""

from __future__ import annotations

from collections.abc import Sequence

from quire.composition import Composition
from quire.errors import PluginLoadError
from quire.interfaces.attention import KVBackend
from quire.interfaces.model import Model
from quire.interfaces.sampling import DrawStep, LogitsStep, Stage
from quire.plugins import Registries
from quire.sampler_choice import absorbed_steps
from quire.worker.adapters import AdapterManager
from quire.worker.graph_capture import graph_sizes, step_capture
from quire.worker.model_runner import ModelRunner
from quire.worker.sampling import SamplingPipeline
from quire.worker.slots import SlotTables


def build_pipeline(
    composition: Composition, registries: Registries, tables: SlotTables
) -> SamplingPipeline:
    """Import and build the samplers.

    Raises:
        PluginLoadError: One is not what it declares.
    """
    vocab_size = composition.description.vocab_size
    steps: list[tuple[Stage, LogitsStep]] = []
    draws: list[DrawStep] = []
    for choice in composition.samplers:
        step = registries.samplers.load(choice.entry)(vocab_size, tables.device)
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
    return SamplingPipeline(
        steps,
        draws[0],  # it stands last in the composition, as it does in the pipeline
        tables,
        [str(choice) for choice in composition.samplers],
        absorbed=absorbed_steps(composition.samplers),
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
    """Build the runner; with kernels, one that gathers its inputs on the device."""
    names = map(str, (composition.model, *composition.attention_backends))
    device_inputs = None
    if composition.kernels == "triton":
        from quire.worker.device_inputs import DeviceInputs  # loads Triton

        device_inputs = DeviceInputs(
            tables,
            [backend.shape.block_size for backend in backends],
            max_num_batched_tokens,
        )
    return ModelRunner(
        model, backends, tables, pipeline, adapters, " with ".join(names), device_inputs
    )


def capture_graphs(runner: ModelRunner, composition: Composition) -> None:
    """Capture the runner's decode steps, as many as were chosen.

    Raises:
        CapacityError: There is not enough memory.
        RefusedError: A part of the step cannot be captured.
    """
    if runner.device_inputs is None or not composition.max_graph_requests:
        return
    from quire.worker.decode_graphs import DecodeGraphs  # loads Triton

    graphs = DecodeGraphs(
        runner.device_inputs,
        runner.pipeline,
        runner.hidden_states_of,
        runner.model.compute_logits,
        graph_sizes(composition.max_graph_requests),
        composition.description.vocab_size,
    )
    graphs.capture(step_capture(runner.tables.device), with_adapters=runner.adapters is not None)
    runner.graphs = graphs
