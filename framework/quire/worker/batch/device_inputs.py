"""Step inputs gathered on the device, from a few values per request that the host sends.

All buffers have fixed addresses, so a captured step finds the inputs of each step in the same
place. `step_inputs` builds the same inputs on the host, and is the reference in the tests.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quire.interfaces.attention import StepLayout
from quire.interfaces.lora import AdapterBatch
from quire.kernels.input_gather import GEOMETRY_FIELDS, StepSource, StepTarget, gather_step
from quire.messages import ScheduledRequest
from quire.worker.batch.slots import TOKENS, SlotTables
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.device.copies import upload
from quire.worker.device.mirror import BufferSpec, Mirror


class DeviceInputs:
    """Input buffers of one worker's steps.

    Args:
        tables: Slot tables, with block tables on the device.
        block_sizes: Number of tokens per block, for each attention backend.
        max_num_batched_tokens: Maximum number of tokens of a step.

    Attributes:
        slots: Slot of each request of the step, then padding slots, `[max_num_seqs]` int64.
        sampled_positions: Position of each request's next token, `[max_num_seqs]` int64.
    """

    def __init__(
        self, tables: SlotTables, block_sizes: Sequence[int], max_num_batched_tokens: int
    ) -> None:
        self.tables = tables
        self.max_num_seqs = tables.padding_slot
        size_of = dict(zip(tables.backend_groups, block_sizes, strict=True))
        self._groups = list(size_of)  # groups that have layers on this device
        self._block_sizes = list(size_of.values())
        self._request_fields = _request_fields(self.max_num_seqs, tables.device)
        self.slots = self._request_fields.device["slots"]
        self.sampled_positions = self._request_fields.device["sampled_positions"]
        max_tokens = max(max_num_batched_tokens, self.max_num_seqs)
        widths = [tables.block_tables[group].shape[1] for group in self._groups]
        self._source = self._make_source(widths)
        self._target = _make_target(max_tokens, self.max_num_seqs, widths, tables.device)
        self._block_rows = _rows_of(self._target.block_rows, self.max_num_seqs, widths)

    def build(self, requests: Sequence[ScheduledRequest]) -> StepInputs:
        """Send the requests of a step, and gather its inputs, without padding."""
        slots = [request.slot for request in requests]
        query_lens = [request.num_tokens for request in requests]
        num_requests, num_tokens = len(slots), sum(query_lens)
        seq_lens = self._send(np.array(slots), np.array(query_lens)).tolist()
        gather_step(self._source, self._target, num_requests, num_tokens)
        sampled = [index for index, request in enumerate(requests) if request.num_samples]
        last_rows = None
        if len(sampled) < num_tokens:
            ends = self._request_fields.host["query_start"][1:][sampled].astype(np.int64)
            last_rows = upload(ends - 1, self.tables.device)
        return StepInputs(
            input_ids=self._target.input_ids[:num_tokens],
            positions=self._target.positions[:num_tokens],
            layouts=self._layouts(num_requests, num_tokens, query_lens, seq_lens),
            slots=slots,
            query_lens=query_lens,
            sampled=sampled,
            last_rows=last_rows,
        )

    def send_decode(self, slots: Sequence[int]) -> None:
        """Send the requests of a decode step, one token each, for `gather_decode`."""
        self._send(np.asarray(slots, dtype=np.int64), np.ones(len(slots), np.int64))

    def gather_decode(self, num_rows: int) -> StepInputs:
        """Gather the padded inputs of a decode step on the device, without host-side values.

        The same call returns the same tensors, so it can be captured.
        """
        gather_step(self._source, self._target, num_rows, num_rows)
        return StepInputs(
            input_ids=self._target.input_ids[:num_rows],
            positions=self._target.positions[:num_rows],
            layouts=self._layouts(num_rows, num_rows, [], []),
            slots=[],
            query_lens=[],
            sampled=[],
            last_rows=None,
        )

    def adapter_batch(self, num_tokens: int) -> AdapterBatch:
        """Return the adapter index of each token of the gathered step, on the device."""
        return AdapterBatch(self._target.adapter_index[:num_tokens], None)

    def _send(
        self,
        slots: NDArray[np.int64],  # [R]
        query_lens: NDArray[np.int64],  # [R]
    ) -> NDArray[np.int64]:  # [R]
        """Send the per-request values of a step, and return the lengths with the new tokens.

        Rows after the last request are padding: no tokens, and the padding slot.
        """
        count, fields, tables = len(slots), self._request_fields.host, self.tables
        computed = tables.num_computed[slots]
        seq_lens: NDArray[np.int64] = computed + query_lens
        ends = np.cumsum(query_lens)
        for name, values, padding in (
            ("slots", slots, tables.padding_slot),
            ("sampled_positions", tables.num_known[slots], 0),
            ("first_positions", computed, 0),
            ("seq_lens", seq_lens, 0),
            ("adapters", tables.adapter_index[slots], -1),
        ):
            fields[name][:count] = values
            fields[name][count:] = padding
        fields["query_start"][1 : count + 1] = ends
        fields["query_start"][count + 1 :] = ends[-1] if count else 0
        self._request_fields.push()
        return seq_lens

    def _layouts(
        self, num_rows: int, num_tokens: int, query_lens: list[int], seq_lens: list[int]
    ) -> list[StepLayout]:
        """Return the layout for each backend, as views; a captured step has empty lists."""
        fields = self._request_fields.device
        layouts = {}
        for index, group in enumerate(self._groups):
            rows = self._block_rows[index][:num_rows]
            if seq_lens:
                rows = rows[:, : -(-max(seq_lens) // self._block_sizes[index])]
            layouts[group] = StepLayout(
                query_start=fields["query_start"][: num_rows + 1],
                seq_lens=fields["seq_lens"][:num_rows],
                block_table=rows,
                slot_mapping=self._target.slot_mapping[index, :num_tokens],
                num_tokens=num_tokens,
                max_query_len=max(query_lens, default=1),
                query_lens_host=query_lens,
                seq_lens_host=seq_lens,
            )
        return [layouts[group] for group in self.tables.backend_groups]

    def _make_source(self, widths: Sequence[int]) -> StepSource:
        tables, fields = self.tables, self._request_fields.device
        geometry = np.zeros((len(self._groups), GEOMETRY_FIELDS), np.int64)
        begin = 0
        for index, group in enumerate(self._groups):
            start = tables.device_tables.starts[TOKENS + 1 + group]
            geometry[index] = start, widths[index], self._block_sizes[index], begin
            begin += self.max_num_seqs * widths[index]
        return StepSource(
            slots=self.slots,
            first_positions=fields["first_positions"],
            query_start=fields["query_start"],
            seq_lens=fields["seq_lens"],
            adapters=fields["adapters"],
            cells=tables.device_tables.cells,
            tokens_per_row=tables.token_ids.shape[1],
            geometry=upload(geometry, tables.device),
        )


def _request_fields(max_num_seqs: int, device: torch.device) -> Mirror:
    """Return the buffers of the values that the host sends for each request."""
    return Mirror(
        {
            "slots": BufferSpec(max_num_seqs, torch.int64),
            "sampled_positions": BufferSpec(max_num_seqs, torch.int64),
            "first_positions": BufferSpec(max_num_seqs, torch.int32),
            "seq_lens": BufferSpec(max_num_seqs, torch.int32),
            "adapters": BufferSpec(max_num_seqs, torch.int32),
            "query_start": BufferSpec(max_num_seqs + 1, torch.int32),
        },
        device,
    )


def _rows_of(cells: torch.Tensor, num_rows: int, widths: Sequence[int]) -> list[torch.Tensor]:
    """Split memory into tables of shape `[num_rows, width]`."""
    tables, start = [], 0
    for width in widths:
        tables.append(cells[start : start + num_rows * width].view(num_rows, width))
        start += num_rows * width
    return tables


def _make_target(
    max_tokens: int, max_requests: int, widths: Sequence[int], device: torch.device
) -> StepTarget:
    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StepTarget(
        input_ids=zeros(max_tokens),
        positions=zeros(max_tokens),
        adapter_index=zeros(max_tokens),
        slot_mapping=zeros(len(widths), max_tokens),
        block_rows=zeros(max_requests * sum(widths), dtype=torch.int32),
    )
