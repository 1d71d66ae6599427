"""The usual step, one token for each of some requests, is recorded once for each number of them.

Python takes long to go through the layers of a small model, beside what the kernels take. So the
first time that so many requests are computed, the calls of compiled functions are noted; from then
on they are made again, and nothing else. All that they read and write stays where it is: inputs in
buffers that each step fills anew, what layers allocate in memory that recorded steps share.

Nothing in a recorded step may depend on what the host knows of it, as with captured CUDA graphs:
backends say in their `graphs` that they keep to that. A step in which torch computes anything, or
that calls functions which cannot be called again, is not recorded: it goes through Python. So does
one whose calls alone do not give the bits that it gave: each is tried once, in cleared memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.attention import KVBackend, StepLayout
from quire.interfaces.model import ForwardBatch
from quire.native.recording import Recording, recording
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs.graph_memory import Blocks, InStepMemory, StepMemory

MAX_REQUESTS = 64  # of a step; with more the kernels take most of the time

Forward = Callable[[Tensor, Tensor, ForwardBatch], Tensor]

_ONE_AT_A_TIME = threading.Lock()  # torch keeps flags of its modes for the whole process

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CPUGraph:
    """The calls of a step, and what must live as long.

    Attributes:
        calls: They are made again.
        batch: What backends have prepared; calls have its addresses.
        hidden_states: `[R, hidden_size]`, what they leave.
    """

    calls: Recording
    batch: ForwardBatch
    hidden_states: Tensor


class CPUGraphs:
    """The recorded steps of one worker.

    Args:
        forward: The model.
        backends: Of the attention layers, by their places; all run in captured steps.
        tables: The running requests.
    """

    def __init__(self, forward: Forward, backends: Sequence[KVBackend], tables: SlotTables) -> None:
        self._forward = forward
        self._backends = backends
        self._groups = tables.backend_groups
        self._largest = min(MAX_REQUESTS, tables.padding_slot)
        self._memory = StepMemory()
        self._steps: dict[int, CPUGraph] = {}
        self._unavailable_reasons: dict[
            int, str
        ] = {}  # why steps of so many requests go through Python
        size = self._largest
        self._input_ids = torch.zeros(size, dtype=torch.int64)
        self._positions = torch.zeros(size, dtype=torch.int64)
        self._query_start = torch.arange(size + 1, dtype=torch.int32)
        self._seq_lens = torch.zeros(size, dtype=torch.int32)
        self._slot_mapping: dict[int, Tensor] = {}
        self._block_table: dict[int, Tensor] = {}
        for group in set(self._groups):
            width = tables.block_tables[group].shape[1]
            self._slot_mapping[group] = torch.zeros(size, dtype=torch.int64)
            self._block_table[group] = torch.zeros(size, width, dtype=torch.int32)

    def hidden_states_of(self, inputs: StepInputs) -> Tensor | None:
        """Compute a step; None if it must go through Python.

        What it returns is written over by the next one.
        """
        count = len(inputs.slots)
        if (
            count > self._largest
            or len(inputs.input_ids) != count
            or count in self._unavailable_reasons
        ):
            return None
        self._fill(inputs, count)
        step = self._steps.get(count)
        if step is not None:
            step.calls.repeat()
            return step.hidden_states
        with _ONE_AT_A_TIME:
            recorded = self._record(count)
        if isinstance(recorded, str):
            if recorded not in self._unavailable_reasons.values():
                logger.info("steps of %d request(s) go through Python: %s", count, recorded)
            self._unavailable_reasons[count] = recorded
            return None
        self._steps[count] = recorded
        return recorded.hidden_states

    def _fill(self, inputs: StepInputs, count: int) -> None:
        """Put a step's inputs where recorded ones find them."""
        self._input_ids[:count] = inputs.input_ids
        self._positions[:count] = inputs.positions
        for group, layout in dict(zip(self._groups, inputs.layouts, strict=True)).items():
            self._seq_lens[:count] = layout.seq_lens  # the same in all groups
            self._slot_mapping[group][:count] = layout.slot_mapping
            self._block_table[group][:count, : layout.block_table.shape[1]] = layout.block_table

    def _record(self, count: int) -> CPUGraph | str:
        """Return a step that was tried, or why it cannot be repeated.

        It must then be computed again, for it may have written anything to its places in the cache.
        """
        layouts = {group: self._layout(group, count) for group in set(self._groups)}
        blocks = Blocks(self._memory)
        try:
            prepared = zip(self._backends, self._groups, strict=True)
            batch = ForwardBatch(
                attention=[backend.prepare(layouts[group]) for backend, group in prepared],
                adapters=None,
            )
            ids, positions = self._input_ids[:count], self._positions[:count]
            with recording() as calls, InStepMemory(blocks, calls) as memory:
                hidden_states = self._forward(ids, positions, batch)
            if calls.reason is not None:
                return calls.reason
            if blocks.addresses - memory.operands - {hidden_states.untyped_storage().data_ptr()}:
                return "something keeps memory that it has allocated in the step"
            expected = hidden_states.clone()
            self._memory.clear()
            calls.repeat()
        except Exception as error:  # what fails again without a recording is reported there
            logger.debug("recording a step failed", exc_info=True)
            return f"{type(error).__name__}: {error}"
        if not _same_bits(hidden_states, expected):
            return "compiled functions and what torch was seen to compute are not all of it"
        return CPUGraph(calls, batch, hidden_states)

    def _layout(self, group: int, count: int) -> StepLayout:
        """Return a group's buffers, as far as a step of so many requests uses them."""
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
