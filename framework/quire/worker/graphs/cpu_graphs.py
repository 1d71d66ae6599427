"""CPU graphs: decode steps whose calls of compiled functions are traced once, and replayed.

In a small model, Python takes long for a step compared with the kernels. So the calls of a step are
traced, once for each number of requests, and from then on only these calls are made:

    compute   gather the inputs from the slot tables, layers, logits
    sample    sample, append the tokens to the tables; for steps whose sampling is fully fused

Their memory does not move: inputs are gathered to fixed buffers, and tensors that layers allocate
are in memory that all graphs share. Tracing makes no call. It takes the time of the Python around
the calls, so steps of few requests are traced before the first request, and larger ones, whose
kernels take longer, when they first occur.

As with CUDA graphs, nothing in a traced step may depend on values that the host has for one step
only; backends declare in their `graphs` capability that they comply. A step has no
graph if torch computes anything in it, or if it calls functions that cannot be replayed. Before the
first request one step is replayed in cleared memory; if that does not give the bits of the same
step through Python, there are no graphs.

Where layers are sharded over several devices, a step is traced by all of them together, and has a
graph on all of them or on none: both ways call the same collective operations. Those must be
calls of compiled functions as well (`is_traceable` of the group).

A pipeline stage has graphs of its layers; it receives before and sends after. So each stage decides
for itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from quire.interfaces.attention import KVBackend
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.layers.parallel import TensorParallelGroup
from quire.native.tracing import CallTrace, trace_calls
from quire.worker.batch.host_inputs import HostInputs
from quire.worker.batch.slots import SlotTables
from quire.worker.graphs.agreement import all_agree
from quire.worker.graphs.cpu_graph_memory import GraphAllocator, GraphMemory, TracingMode
from quire.worker.graphs.received_tensors import ReceivedTensors
from quire.worker.graphs.step_graphs import CapturedStep, StepGraphs
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire.worker.stage_forward import Computed, stage_tensors, tensors_of

MAX_REQUESTS = 64  # per step; with more, kernels take most of the time
TRACED_AT_START = 8  # steps of up to so many requests are traced before the first request
TRIED = 2  # number of requests of the step that is tried

Compute = Callable[[Tensor, Tensor, ForwardBatch, StageTensors | None], Computed]
Head = Callable[[Tensor], Tensor]
ResultT = TypeVar("ResultT")

_TRACE_LOCK = threading.Lock()  # torch's dispatch modes set process-wide flags

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageLayers:
    """What a stage computes.

    Attributes:
        compute: Layers of the stage.
        logits_of: LM head; called on the last stage only.
        backends: Attention backends by backend index; all support captured steps.
        pipeline: Sampling pipeline.
        example: Tensors like those that the stage receives; None for the first stage.
        is_last: Whether the stage computes logits and samples.
    """

    compute: Compute
    logits_of: Head
    backends: Sequence[KVBackend]
    pipeline: SamplingPipeline
    example: StageTensors | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Outputs of a step; logits on the last stage."""

    computed: Computed
    logits: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        return [*tensors_of(self.computed), *([] if self.logits is None else [self.logits])]


@dataclass(frozen=True, slots=True)
class _Replay(Generic[ResultT]):
    """Traced calls with their result.

    Attributes:
        calls: Traced calls.
        result: Result, which each replay overwrites.
        kept: Objects that the calls have the addresses of.
    """

    calls: CallTrace
    result: ResultT
    kept: object = None

    def __call__(self) -> ResultT:
        self.calls.replay()
        return self.result


class _NoGraphError(Exception):
    """A step cannot be traced."""


class CPUGraphs(StepGraphs):
    """The CPU graphs of one worker.

    Args:
        layers: What the worker's stage computes.
        tables: Slot tables of the running requests.
        group: Tensor-parallel group of the worker.
    """

    def __init__(self, layers: StageLayers, tables: SlotTables, group: TensorParallelGroup) -> None:
        self._layers = layers
        self._group = group
        self._largest = min(MAX_REQUESTS, tables.padding_slot)
        block_sizes = [backend.shape.block_size for backend in layers.backends]
        self._inputs = HostInputs(tables, block_sizes, self._largest)
        received = None
        if layers.example is not None:
            received = ReceivedTensors(layers.example, self._largest)
        super().__init__(self._inputs, received)
        self._memory = GraphMemory()
        self._steps: dict[tuple[int, bool], CapturedStep] = {}
        self._unavailable_reasons: dict[tuple[int, bool], str] = {}
        self._is_sampling_reported = False

    @torch.inference_mode()
    def trace(self) -> str | None:
        """Trace steps of few requests, and try one; no slot may be assigned yet.

        Returns:
            The reason why no step has a graph.
        """
        started = time.perf_counter()
        tried = min(TRIED, self._largest)
        try:
            step = self._steps[tried, False] = self._traced(tried, uses_adapters=False)
        except _NoGraphError as error:
            return str(error)
        if (reason := self._agreed(self._try(step))) is not None:
            self.clear()
            return reason
        for num_requests in range(1, min(TRACED_AT_START, self._largest) + 1):
            self.step_of(num_requests, uses_adapters=False)
        logger.info(
            "traced %d decode steps as CPU graphs in %.2f s",
            len(self._steps),
            time.perf_counter() - started,
        )
        return None

    def clear(self) -> None:
        """Drop all steps, and the memory that their graphs hold."""
        self._steps.clear()
        self._memory = GraphMemory()

    def step_of(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep | None:
        """Return the step of `num_requests` requests, traced if it is new; None: there is none."""
        key = num_requests, uses_adapters
        step = self._steps.get(key)
        if step is not None or num_requests > self._largest or key in self._unavailable_reasons:
            return step
        try:
            step = self._steps[key] = self._traced(num_requests, uses_adapters=uses_adapters)
        except _NoGraphError as error:
            reason = str(error)
            if reason not in self._unavailable_reasons.values():
                logger.info(
                    "decode steps of %d request(s)%s have no CPU graph and run through Python: %s",
                    num_requests,
                    " with adapters" if uses_adapters else "",
                    reason,
                )
            self._unavailable_reasons[key] = reason
        return step

    def _traced(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep:
        """Return a step whose calls are traced.

        Raises:
            _NoGraphError: It cannot be traced, on this device or on another one.
        """
        allocator = GraphAllocator(self._memory)
        calls, reason, outputs = CallTrace(), None, None
        batch = self._prepare(num_requests, uses_adapters=uses_adapters)
        try:
            with _TRACE_LOCK, trace_calls() as calls, TracingMode(allocator, calls) as memory:
                outputs = self._run(num_requests, batch)
            results = {output.untyped_storage().data_ptr() for output in outputs.tensors}
            if allocator.addresses - memory.operands - results:
                reason = "memory allocated in the step is still referenced after it"
        except Exception as error:  # reported if it fails again without tracing
            logger.debug("tracing a decode step failed", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        reason = self._agreed(calls.reason or reason)
        if reason is not None or outputs is None:
            raise _NoGraphError(reason)
        return CapturedStep(
            num_requests,
            _Replay(calls, outputs.computed, batch),
            outputs.logits,
            self._traced_sampling(allocator, outputs.logits),
        )

    def _traced_sampling(
        self, allocator: GraphAllocator, logits: Tensor | None
    ) -> Callable[[], SampledTokens] | None:
        """Return the traced sampling; None if there is none, or torch computes a part of it."""
        if logits is None or not self._layers.pipeline.is_fused((), ()):
            return None
        calls, reason, sampled = CallTrace(), None, None
        try:
            with _TRACE_LOCK, trace_calls() as calls, TracingMode(allocator, calls):
                sampled = self._sample(logits)
        except Exception as error:  # the edge of samplers; reported if it fails without tracing
            logger.debug("tracing the sampling of a decode step failed", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        reason = self._agreed(calls.reason or reason)
        if reason is not None or sampled is None:
            if not self._is_sampling_reported:
                logger.info("samplers have no CPU graph and run through Python: %s", reason)
            self._is_sampling_reported = True
            return None
        return _Replay(calls, sampled)

    def _prepare(self, num_requests: int, *, uses_adapters: bool) -> ForwardBatch:
        """Let the backends prepare for steps of `num_requests` requests."""
        layouts = self._inputs.decode_step(num_requests).layouts
        prepared = zip(self._layers.backends, layouts, strict=True)
        return ForwardBatch(
            attention=[backend.prepare(layout) for backend, layout in prepared],
            adapters=self._inputs.adapter_batch(num_requests) if uses_adapters else None,
        )

    def _run(self, num_requests: int, batch: ForwardBatch) -> _Outputs:
        """Compute a step from the buffers that the replays will use."""
        self._inputs.gather_decode(num_requests)
        inputs = self._inputs.decode_step(num_requests)
        received = None if self._received is None else self._received.rows(num_requests)
        layers = self._layers
        computed = layers.compute(inputs.input_ids, inputs.positions, batch, received)
        logits = None
        if layers.is_last and isinstance(computed, Tensor):
            logits = layers.logits_of(computed).float()
        return _Outputs(computed, logits)

    def _sample(self, logits: Tensor) -> SampledTokens:
        count = len(logits)
        rows = self._inputs.tables.sampled_rows(
            self._inputs.slots[:count], self._inputs.sampled_positions[:count]
        )
        sampled = self._layers.pipeline.sample_fused(logits, rows)
        self._inputs.append(sampled.token_ids)
        return sampled

    def _try(self, step: CapturedStep) -> str | None:
        """Compute a step through Python, and in cleared memory by its graph; why they differ.

        The step is of slots that are not assigned, so its KV is written to the null block.
        """
        token_ids = self._inputs.tables.token_ids
        try:
            self._inputs.send_decode(range(step.num_rows))
            self._fill_received(step.num_rows)
            batch = self._prepare(step.num_rows, uses_adapters=False)
            outputs = self._run(step.num_rows, batch)
            expected = [output.clone() for output in outputs.tensors]
            if step.sample is not None and outputs.logits is not None:
                expected.append(self._sample(outputs.logits).packed.clone())
                token_ids[: step.num_rows] = 0  # again without the sampled tokens
            self._memory.clear()
            self._fill_received(step.num_rows)  # layers may have written to the buffers
            replayed = tensors_of(step.compute())
            if step.logits is not None:
                replayed.append(step.logits)
            if step.sample is not None:
                replayed.append(step.sample().packed)
                token_ids[: step.num_rows] = 0
        except Exception as error:
            if self._group.size > 1:  # the other devices are within a collective operation
                raise
            logger.debug("trying a decode step failed", exc_info=True)
            return f"{type(error).__name__}: {error}"
        is_same = all(map(_same_bits, replayed, expected))
        return None if is_same else "the replay of the traced calls gives other results"

    def _fill_received(self, num_rows: int) -> None:
        """Fill the buffers of what the stage receives with numbers of both signs."""
        if self._received is None:
            return
        rows = tensors_of(self._received.rows(num_rows))
        numbers = [torch.linspace(-1, 1, each.numel()).view(each.shape) for each in rows]
        self._received.fill(stage_tensors(numbers), num_rows)

    def _agreed(self, reason: str | None) -> str | None:
        """Return why a step has no graph on this device or on another one; None if all have one."""
        if all_agree(self._group, reason is None, self._inputs.tables.device):
            return None
        return reason or "it cannot be traced on another tensor-parallel rank"


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
