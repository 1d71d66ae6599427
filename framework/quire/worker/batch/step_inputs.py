"""Step inputs built on the host: token ids, positions, slot mapping and attention layout.

Used on devices without Triton kernels; `device_inputs` is the counterpart. All inputs are computed
with numpy on the host and uploaded, except for the token ids: they are gathered on the device,
because the last ones may exist only there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.messages import ScheduledRequest
from quire.worker.batch.slots import TOKENS, SlotTables
from quire.worker.device.copies import upload


@dataclass(slots=True)
class StepInputs:
    """The inputs of one forward pass.

    Attributes:
        input_ids: Token ids, `[T]` int64.
        positions: Positions, `[T]` int64.
        layouts: Layout for each attention backend; backends of one KV group share theirs.
        slots: Slot of each request, in order.
        query_lens: Number of scheduled tokens of each request.
        sampled: Indices into `slots` of the requests for which a token is sampled.
        last_rows: Rows of the last tokens of those, `[N]` int64; None if these are all rows.
    """

    input_ids: Tensor
    positions: Tensor
    layouts: list[StepLayout]
    slots: list[int]
    query_lens: list[int]
    sampled: list[int]
    last_rows: Tensor | None


def build_inputs(
    requests: Sequence[ScheduledRequest], tables: SlotTables, block_sizes: Sequence[int]
) -> StepInputs:
    """Build the inputs of a step for some of its requests.

    Args:
        requests: Scheduled requests to compute.
        tables: Slot tables before the step, with all changes pushed.
        block_sizes: Number of tokens per block, for each attention backend.
    """
    slots = [request.slot for request in requests]
    query_lens = [request.num_tokens for request in requests]
    slot_array = np.array(slots)
    computed = tables.num_computed[slot_array]
    num_tokens = sum(query_lens)
    if num_tokens == len(slots):  # a decode step: one token each
        query_start = np.arange(len(slots) + 1, dtype=np.int32)
        rows, positions, seq_lens = slot_array, computed, computed + 1
    else:
        lens = np.array(query_lens)
        query_start = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(lens, out=query_start[1:])
        rows = np.repeat(slot_array, lens)
        positions = np.arange(num_tokens) + np.repeat(computed - query_start[:-1], lens)
        seq_lens = computed + lens
    device = tables.device
    sampled = [index for index, request in enumerate(requests) if request.num_samples]
    step = _Step(
        slots=slot_array,
        rows=rows,
        positions=positions,
        query_lens=query_lens,
        seq_lens=seq_lens.tolist(),
        query_start=upload(query_start, device),
        seq_lens_tensor=upload(seq_lens.astype(np.int32), device),
    )
    by_group = {
        group: _layout(step, tables.block_tables[group], size, device)
        for group, size in dict(zip(tables.backend_groups, block_sizes, strict=True)).items()
    }
    last_rows = None
    if len(sampled) < num_tokens:
        last_rows = upload(query_start[1:][sampled].astype(np.int64) - 1, device)
    return StepInputs(
        input_ids=tables.device_tables.gather(TOKENS, rows, positions).to(torch.int64),
        positions=upload(positions, device),
        layouts=[by_group[group] for group in tables.backend_groups],
        slots=slots,
        query_lens=query_lens,
        sampled=sampled,
        last_rows=last_rows,
    )


@dataclass(slots=True, kw_only=True)
class _Step:
    """The inputs of a step that all KV groups share."""

    slots: NDArray[np.int64]  # [R]
    rows: NDArray[np.int64]  # [T], the slot of each token
    positions: NDArray[np.int64]  # [T]
    query_lens: list[int]  # [R]
    seq_lens: list[int]  # [R]
    query_start: Tensor  # [R + 1] int32, on the device
    seq_lens_tensor: Tensor  # [R] int32, on the device


def _layout(
    step: _Step,
    table: NDArray[np.int32],  # [slots, max_blocks]
    block_size: int,
    device: torch.device,
) -> StepLayout:
    blocks = step.positions // block_size
    offsets = step.positions - blocks * block_size
    slot_mapping = table[step.rows, blocks] * np.int64(block_size) + offsets
    width = -(-max(step.seq_lens) // block_size)
    return StepLayout(
        query_start=step.query_start,
        seq_lens=step.seq_lens_tensor,
        block_table=upload(table[step.slots, :width], device),
        slot_mapping=upload(slot_mapping, device),
        num_tokens=len(step.positions),
        max_query_len=max(step.query_lens),
        query_lens_host=step.query_lens,
        seq_lens_host=step.seq_lens,
    )
