"""Inputs of decode steps that compiled functions gather from the slot tables, for CPU graphs.

All buffers have fixed addresses, so a traced step finds its inputs in the same place. For one token
of each request these are the inputs that `step_inputs` builds, the reference in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.interfaces.lora import AdapterBatch
from quire.native.layer_kernels.cpu_steps import BlockTable, DecodeBuffers, DecodeStep, SlotState
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs


class HostInputs:
    """Input buffers of the decode steps of one worker.

    Args:
        tables: Slot tables.
        block_sizes: Number of tokens per block, for each attention backend.
        max_requests: Number of requests of the largest step.

    Attributes:
        tables: Slot tables.
        slots: Slot of each request of the step, `[max_requests]` int64.
        sampled_positions: Position of each request's next token, `[max_requests]` int64.
    """

    def __init__(self, tables: SlotTables, block_sizes: Sequence[int], max_requests: int) -> None:
        self.tables = tables
        self._buffers = buffers = DecodeBuffers.empty(max_requests)
        self.slots, self.sampled_positions = buffers.slots, buffers.sampled_positions
        self._slots = buffers.slots.numpy()
        self._query_start = torch.arange(max_requests + 1, dtype=torch.int32)
        size_of = dict(zip(tables.backend_groups, block_sizes, strict=True))
        self._groups = {
            group: _block_table(tables, group, size, max_requests)
            for group, size in size_of.items()
        }
        state = SlotState(
            num_computed=tables.num_computed,
            num_known=tables.num_known,
            adapters=tables.adapter_index,
            token_ids=tables.token_ids,
        )
        self._step = DecodeStep(state, list(self._groups.values()), buffers)

    def send_decode(self, slots: Sequence[int]) -> None:
        """Set the requests of a step, for `gather_decode`."""
        self._slots[: len(slots)] = slots

    def gather_decode(self, num_rows: int) -> None:
        """Gather the inputs of a step, without values that the host has for one step only."""
        self._step.gather(num_rows)

    def decode_step(self, num_rows: int) -> StepInputs:
        """Return the buffers that `gather_decode` writes, the same ones for each step."""
        layouts = {group: self._layout(table, num_rows) for group, table in self._groups.items()}
        return StepInputs(
            input_ids=self._buffers.input_ids[:num_rows],
            positions=self._buffers.positions[:num_rows],
            layouts=[layouts[group] for group in self.tables.backend_groups],
            slots=[],
            query_lens=[],
            sampled=[],
            last_rows=None,
        )

    def adapter_batch(self, num_tokens: int) -> AdapterBatch:
        """Return the adapter index of each token of the gathered step."""
        return AdapterBatch(self._buffers.adapter_index[:num_tokens], None)

    def append(self, token_ids: Tensor) -> None:  # [R] int32
        """Append one sampled token to each request of the gathered step; does not count it."""
        self._step.append(token_ids)

    def _layout(self, table: BlockTable, num_rows: int) -> StepLayout:
        return StepLayout(
            query_start=self._query_start[: num_rows + 1],
            seq_lens=self._buffers.seq_lens[:num_rows],
            block_table=table.block_rows[:num_rows],
            slot_mapping=table.slot_mapping[:num_rows],
            num_tokens=num_rows,
            max_query_len=1,
            query_lens_host=[],
            seq_lens_host=[],
        )


def _block_table(tables: SlotTables, group: int, block_size: int, max_requests: int) -> BlockTable:
    blocks = tables.block_tables[group]
    return BlockTable(
        blocks=blocks,
        block_size=block_size,
        block_rows=torch.zeros(max_requests, blocks.shape[1], dtype=torch.int32),
        slot_mapping=torch.zeros(max_requests, dtype=torch.int64),
    )
