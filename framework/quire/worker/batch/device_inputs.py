"""From a plan to tensors on a device: the host sends a few numbers a request, a kernel the rest.

All of it lies in buffers that never move, so a captured step finds the next step's inputs where it
found the last one's. `step_inputs` does the same on the host, and is what the tests compare with.
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
from quire.worker.device.mirror import BufferSpec, Mirror
from quire.worker.device.uploads import upload


class DeviceInputs:
    """The buffers of one worker's steps.

    Args:
        tables: The slots' state; the device has their block tables.
        block_sizes: Tokens a block, for each attention backend.
        max_num_batched_tokens: Of a step.

    Attributes:
        slots: `[max_num_seqs]` int64, the slot of each request of the step; the spare one behind.
        sampled_positions: `[max_num_seqs]` int64, where each request's next token goes.
    """

    def __init__(
        self, tables: SlotTables, block_sizes: Sequence[int], max_num_batched_tokens: int
    ) -> None:
        self.tables = tables
        self.max_num_seqs = tables.padding_slot
        size_of = dict(zip(tables.backend_groups, block_sizes, strict=True))
        self._groups = list(size_of)  # those that have layers here
        self._block_sizes = list(size_of.values())
        self._words = _words(self.max_num_seqs, tables.device)
        self.slots = self._words.device["slots"]
        self.sampled_positions = self._words.device["sampled_positions"]
        max_tokens = max(max_num_batched_tokens, self.max_num_seqs)
        widths = [tables.block_tables[group].shape[1] for group in self._groups]
        self._source = self._make_source(widths)
        self._target = _make_target(max_tokens, self.max_num_seqs, widths, tables.device)
        self._block_rows = _rows_of(self._target.block_rows, self.max_num_seqs, widths)

    def build(self, requests: Sequence[ScheduledRequest]) -> StepInputs:
        """Send a step's numbers, and gather its inputs; the tensors are as long as the step."""
        slots = [share.slot for share in requests]
        query_lens = [share.num_tokens for share in requests]
        num_requests, num_tokens = len(slots), sum(query_lens)
        seq_lens = self._send(np.array(slots), np.array(query_lens)).tolist()
        gather_step(self._source, self._target, num_requests, num_tokens)
        sampled = [index for index, share in enumerate(requests) if share.num_samples]
        last_rows = None
        if len(sampled) < num_tokens:
            ends = self._words.host["query_start"][1:][sampled].astype(np.int64)
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
        """Send the numbers of a step of one token a request; `gather_decode` finds its inputs."""
        self._send(np.asarray(slots, dtype=np.int64), np.ones(len(slots), np.int64))

    def gather_decode(self, num_rows: int) -> StepInputs:
        """Gather the inputs of a step of one token a request, padded; only the device knows them.

        The same call gives the same tensors, so it can be captured.
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
        """Return which token of the gathered step uses which adapter, as the device knows it."""
        return AdapterBatch(self._target.adapter_index[:num_tokens], ())

    def _send(
        self,
        slots: NDArray[np.int64],  # [R]
        query_lens: NDArray[np.int64],  # [R]
    ) -> NDArray[np.int64]:  # [R]
        """Send what the host knows of a step; returns the requests' lengths with their new tokens.

        What is behind the last request is padding: no tokens, and the spare slot.
        """
        count, words, tables = len(slots), self._words.host, self.tables
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
            words[name][:count] = values
            words[name][count:] = padding
        words["query_start"][1 : count + 1] = ends
        words["query_start"][count + 1 :] = ends[-1] if count else 0
        self._words.push()
        return seq_lens

    def _layouts(
        self, num_rows: int, num_tokens: int, query_lens: list[int], seq_lens: list[int]
    ) -> list[StepLayout]:
        """Return views of the gathered step, one for each backend; empty lists: a captured step."""
        words = self._words.device
        layouts = {}
        for index, group in enumerate(self._groups):
            rows = self._block_rows[index][:num_rows]
            if seq_lens:
                rows = rows[:, : -(-max(seq_lens) // self._block_sizes[index])]
            layouts[group] = StepLayout(
                query_start=words["query_start"][: num_rows + 1],
                seq_lens=words["seq_lens"][:num_rows],
                block_table=rows,
                slot_mapping=self._target.slot_mapping[index, :num_tokens],
                num_tokens=num_tokens,
                max_query_len=max(query_lens, default=1),
                query_lens_host=query_lens,
                seq_lens_host=seq_lens,
            )
        return [layouts[group] for group in self.tables.backend_groups]

    def _make_source(self, widths: Sequence[int]) -> StepSource:
        tables, words = self.tables, self._words.device
        geometry = np.zeros((len(self._groups), GEOMETRY_FIELDS), np.int64)
        begin = 0
        for index, group in enumerate(self._groups):
            start = tables.device_tables.starts[TOKENS + 1 + group]
            geometry[index] = start, widths[index], self._block_sizes[index], begin
            begin += self.max_num_seqs * widths[index]
        return StepSource(
            slots=self.slots,
            first_positions=words["first_positions"],
            query_start=words["query_start"],
            seq_lens=words["seq_lens"],
            adapters=words["adapters"],
            cells=tables.device_tables.cells,
            num_tokens_a_row=tables.token_ids.shape[1],
            geometry=upload(geometry, tables.device),
        )


def _words(max_num_seqs: int, device: torch.device) -> Mirror:
    """Return what the host sends of each request."""
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
    """Cut memory into tables, `[num_rows, width]`."""
    tables, start = [], 0
    for width in widths:
        tables.append(cells[start : start + num_rows * width].view(num_rows, width))
        start += num_rows * width
    return tables


def _make_target(
    max_tokens: int, max_requests: int, widths: Sequence[int], device: torch.device
) -> StepTarget:
    def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StepTarget(
        input_ids=numbers(max_tokens),
        positions=numbers(max_tokens),
        adapter_index=numbers(max_tokens),
        slot_mapping=numbers(len(widths), max_tokens),
        block_rows=numbers(max_requests * sum(widths), dtype=torch.int32),
    )
