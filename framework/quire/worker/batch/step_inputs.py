"""From a plan to tensors: which tokens a step computes, at which positions, into which slots.

This is the host's way, for devices without kernels; `device_inputs` is the other. Everything that
the host knows is computed with numpy on the host and handed over whole; only the token ids are
gathered on the device, because the last of them may never have left it.
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
from quire.worker.device.uploads import upload


@dataclass(slots=True)
class StepInputs:
    """The input of one forward pass.

    Attributes:
        input_ids: `[T]` int64.
        positions: `[T]` int64.
        layouts: One for each attention backend; those of one KV group share theirs.
        slots: The slot of each request, in order.
        query_lens: Tokens of each request in this step.
        sampled: Indices into `slots` of the requests that draw a token.
        last_rows: For those, the row of their last token, `[N]` int64; None if they are all rows.
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
        requests: What is to be computed.
        tables: The slots' state before the step; what is new has been pushed.
        block_sizes: Tokens a block, for each attention backend.
    """
    slots = [share.slot for share in requests]
    query_lens = [share.num_tokens for share in requests]
    slot_array = np.array(slots)
    computed = tables.num_computed[slot_array]
    num_tokens = sum(query_lens)
    if num_tokens == len(slots):  # one token each, the usual step
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
    sampled = [index for index, share in enumerate(requests) if share.num_samples]
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
    """What all KV groups share of a step."""

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
