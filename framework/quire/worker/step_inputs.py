"""From a plan to tensors: which tokens a step computes, at which positions, into which slots.

Everything that the host knows is computed with numpy on the host and handed over whole; only the
token ids are gathered on the device, because the last of them may never have left it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.messages import ScheduledRequest
from quire.worker.slots import SlotTables


@dataclass(slots=True)
class StepInputs:
    """The input of one forward pass.

    Attributes:
        input_ids: `[T]` int64.
        positions: `[T]` int64.
        layouts: One for each KV group.
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
        tables: The slots' state before the step.
        block_sizes: Tokens a block, for each KV group.
    """
    slots = [share.slot for share in requests]
    query_lens = [share.num_tokens for share in requests]
    slot_array = np.array(slots)
    lens = np.array(query_lens)
    computed = tables.num_computed[slot_array]
    num_tokens = sum(query_lens)
    if num_tokens == len(slots):  # one token each, the usual step
        query_start = np.arange(len(slots) + 1, dtype=np.int32)
        rows, positions = slot_array, computed
    else:
        query_start = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(lens, out=query_start[1:])
        rows = np.repeat(slot_array, lens)
        positions = np.arange(num_tokens) + np.repeat(computed - query_start[:-1], lens)
    device = tables.device
    position_tensor = torch.from_numpy(positions).to(device)
    row_tensor = torch.from_numpy(rows).to(device)
    sampled = [index for index, share in enumerate(requests) if share.num_samples]
    step = _HostStep(slot_array, query_lens, query_start, rows, positions, computed + lens)
    layouts = [
        _layout(step, table, size, device)
        for table, size in zip(tables.block_tables, block_sizes, strict=True)
    ]
    last_rows = None
    if len(sampled) < num_tokens:
        last_rows = torch.from_numpy(query_start[1:][sampled].astype(np.int64) - 1).to(device)
    return StepInputs(
        input_ids=tables.token_ids[row_tensor, position_tensor].to(torch.int64),
        positions=position_tensor,
        layouts=layouts,
        slots=slots,
        query_lens=query_lens,
        sampled=sampled,
        last_rows=last_rows,
    )


@dataclass(slots=True)
class _HostStep:
    """A step as the host knows it."""

    slots: NDArray[np.int64]  # [R]
    query_lens: list[int]  # [R]
    query_start: NDArray[np.int32]  # [R + 1]
    rows: NDArray[np.int64]  # [T], the slot of each token
    positions: NDArray[np.int64]  # [T]
    seq_lens: NDArray[np.int64]  # [R]


def _layout(
    step: _HostStep,
    table: NDArray[np.int32],  # [slots, max_blocks]
    block_size: int,
    device: torch.device,
) -> StepLayout:
    blocks = step.positions // block_size
    offsets = step.positions - blocks * block_size
    slot_mapping = table[step.rows, blocks] * np.int64(block_size) + offsets
    seq_lens = step.seq_lens.tolist()
    width = -(-max(seq_lens) // block_size)
    return StepLayout(
        query_start=torch.from_numpy(step.query_start).to(device),
        seq_lens=torch.from_numpy(step.seq_lens.astype(np.int32)).to(device),
        block_table=torch.from_numpy(table[step.slots, :width]).to(device),
        slot_mapping=torch.from_numpy(slot_mapping).to(device),
        num_tokens=len(step.positions),
        query_lens_host=step.query_lens,
        seq_lens_host=seq_lens,
    )
