"""CPU graphs: decode steps that are traced once for each number of requests, and replayed.

In a small model, Python takes long for the layers compared with the kernels. So the first decode
step of each size is traced: the calls of compiled functions are recorded, and from then on only
these calls are made. Their memory does not move: inputs are in buffers that each step fills, and
tensors that layers allocate are in memory that all graphs share.

As with CUDA graphs, nothing in a traced step may depend on values that the host has for one step
only; backends declare in their `graphs` capability that they comply. A step has no
graph if torch computes anything in it, if it calls functions that cannot be replayed, or if its
replay, tried once in cleared memory, does not give the same bits. It then runs through Python.

Where layers are sharded over several devices, a step is traced by all of them together, and has a
graph on all of them or on none: both ways call the same collective operations. Those must be
calls of compiled functions as well (`is_traceable` of the group).

A pipeline stage has graphs of its layers; it receives before and sends after. So each stage decides
for itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.attention import KVBackend, StepLayout
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.layers.parallel import TensorParallelGroup
from quire.native.recording import CallTrace, trace_calls
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs.agreement import all_agree
from quire.worker.graphs.cpu_graph_memory import GraphAllocator, GraphMemory, TracingMode
from quire.worker.graphs.received_tensors import ReceivedTensors
from quire.worker.stage_forward import Computed, tensors_of

MAX_REQUESTS = 64  # per step; with more, kernels take most of the time

Compute = Callable[[Tensor, Tensor, ForwardBatch, StageTensors | None], Computed]

_TRACE_LOCK = threading.Lock()  # torch's dispatch modes set process-wide flags

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CPUGraph:
    """The traced calls of a step, and the objects that must live as long.

    Attributes:
        calls: Traced calls.
        batch: Metadata prepared by the backends; calls use its addresses.
        computed: Output of the calls.
    """

    calls: CallTrace
    batch: ForwardBatch
    computed: Computed


class CPUGraphs:
    """The CPU graphs of one worker.

    Args:
        compute: Function that computes the layers of the worker's stage.
        backends: Attention backends by backend index; all support captured steps.
        tables: Slot tables of the running requests.
        group: Tensor-parallel group of the worker.
    """

    def __init__(
        self,
        compute: Compute,
        backends: Sequence[KVBackend],
        tables: SlotTables,
        group: TensorParallelGroup,
    ) -> None:
        self._compute_layers = compute
        self._group = group
        self._backends = backends
        self._groups = tables.backend_groups
        self._largest = min(MAX_REQUESTS, tables.padding_slot)
        self._memory = GraphMemory()
        self._steps: dict[int, CPUGraph] = {}
        self._unavailable_reasons: dict[int, str] = {}  # number of requests -> why not traced
        size = self._largest
        self._input_ids = torch.zeros(size, dtype=torch.int64)
        self._positions = torch.zeros(size, dtype=torch.int64)
        self._query_start = torch.arange(size + 1, dtype=torch.int32)
        self._seq_lens = torch.zeros(size, dtype=torch.int32)
        self._received: ReceivedTensors | None = None
        self._slot_mapping: dict[int, Tensor] = {}
        self._block_table: dict[int, Tensor] = {}
        for kv_group in set(self._groups):
            width = tables.block_tables[kv_group].shape[1]
            self._slot_mapping[kv_group] = torch.zeros(size, dtype=torch.int64)
            self._block_table[kv_group] = torch.zeros(size, width, dtype=torch.int32)

    def compute(self, inputs: StepInputs, received: StageTensors | None) -> Computed | None:
        """Compute a step by its graph; None if it must run through Python.

        The next step overwrites the returned tensors. What was received stays as it is.
        """
        count = len(inputs.slots)
        if (
            count > self._largest
            or len(inputs.input_ids) != count
            or count in self._unavailable_reasons
        ):
            return None
        self._fill(inputs, count)
        self._fill_received(received)
        step = self._steps.get(count)
        if step is not None:
            step.calls.replay()
            return step.computed
        with _TRACE_LOCK:
            traced = self._trace(count, received)
        if isinstance(traced, str):
            if traced not in self._unavailable_reasons.values():
                logger.info(
                    "decode steps of %d request(s) have no CPU graph and run through Python: %s",
                    count,
                    traced,
                )
            self._unavailable_reasons[count] = traced
            return None
        self._steps[count] = traced
        return traced.computed

    def _fill(self, inputs: StepInputs, count: int) -> None:
        """Copy a step's inputs to the buffers of the graphs."""
        self._input_ids[:count] = inputs.input_ids
        self._positions[:count] = inputs.positions
        for group, layout in dict(zip(self._groups, inputs.layouts, strict=True)).items():
            self._seq_lens[:count] = layout.seq_lens  # the same in all groups
            self._slot_mapping[group][:count] = layout.slot_mapping
            self._block_table[group][:count, : layout.block_table.shape[1]] = layout.block_table

    def _fill_received(self, received: StageTensors | None) -> None:
        """Copy the tensors of the stage before to the buffers of the graphs."""
        if received is None:
            return
        if self._received is None:
            self._received = ReceivedTensors(received, self._largest)
        self._received.fill(received, len(received.hidden_states))

    def _trace(self, count: int, received: StageTensors | None) -> CPUGraph | str:
        """Return the graph of a step after a trial replay, or the reason why there is none.

        Without a graph the step must be computed again: its KV blocks may hold anything.
        """
        allocator = GraphAllocator(self._memory)
        try:
            batch = self._prepare(count)
            ids, positions = self._input_ids[:count], self._positions[:count]
            given = None if self._received is None else self._received.rows(count)
            with trace_calls() as calls, TracingMode(allocator, calls) as memory:
                computed = self._compute_layers(ids, positions, batch, given)
            outputs, reason = tensors_of(computed), calls.reason
            results = {output.untyped_storage().data_ptr() for output in outputs}
            if allocator.addresses - memory.operands - results:
                reason = reason or "memory allocated in the step is still referenced after it"
            if (reason := self._agreed(reason)) is not None:
                return reason
            expected = [output.clone() for output in outputs]
            self._memory.clear()
            self._fill_received(received)  # layers may have written to the buffers
            calls.replay()
        except Exception as error:  # reported if it fails again without tracing
            if self._group.size > 1:  # the other devices are within a collective operation
                raise
            logger.debug("tracing a decode step failed", exc_info=True)
            return f"{type(error).__name__}: {error}"
        is_same = all(map(_same_bits, outputs, expected))
        reason = None if is_same else "the replay of the traced calls gives other hidden states"
        reason = self._agreed(reason)
        return CPUGraph(calls, batch, computed) if reason is None else reason

    def _prepare(self, count: int) -> ForwardBatch:
        """Let the backends prepare for steps of `count` requests."""
        layouts = {group: self._layout(group, count) for group in set(self._groups)}
        prepared = zip(self._backends, self._groups, strict=True)
        return ForwardBatch(
            attention=[backend.prepare(layouts[group]) for backend, group in prepared],
            adapters=None,
        )

    def _agreed(self, reason: str | None) -> str | None:
        """Return why a step has no graph on this device or on another one; None if all have one."""
        if all_agree(self._group, reason is None, self._input_ids.device):
            return None
        return reason or "it cannot be traced on another tensor-parallel rank"

    def _layout(self, group: int, count: int) -> StepLayout:
        """Return views of a KV group's buffers for a step of `count` requests."""
        return StepLayout(
            query_start=self._query_start[: count + 1],
            seq_lens=self._seq_lens[:count],
            block_table=self._block_table[group][:count],
            slot_mapping=self._slot_mapping[group][:count],
            num_tokens=count,
            max_query_len=1,
            query_lens_host=[],
            seq_lens_host=[],
        )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
