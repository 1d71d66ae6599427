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
    query_start = np.zeros(len(slots) + 1, np.int32)
    np.cumsum(lens, out=query_start[1:])
    num_tokens = int(query_start[-1])
    if num_tokens == len(slots):  # one token each, the usual step
        rows, positions = slot_array, computed
    else:
        rows = np.repeat(slot_array, lens)
        positions = np.arange(num_tokens) + np.repeat(computed - query_start[:-1], lens)
    device = tables.device
    position_tensor = torch.from_numpy(positions).to(device)
    row_tensor = torch.from_numpy(rows).to(device)
    sampled = [index for index, share in enumerate(requests) if share.num_samples]
    layouts = [
        _layout(table, size, slot_array, rows, positions, query_start, computed + lens, device)
        for table, size in zip(tables.block_tables, block_sizes, strict=True)
    ]
    last = query_start[1:][sampled].astype(np.int64) - 1
    is_every_row = len(last) == num_tokens
    return StepInputs(
        input_ids=tables.token_ids[row_tensor, position_tensor].to(torch.int64),
        positions=position_tensor,
        layouts=layouts,
        slots=slots,
        query_lens=query_lens,
        sampled=sampled,
        last_rows=None if is_every_row else torch.from_numpy(last).to(device),
    )


def _layout(
    table: NDArray[np.int32],  # [slots, max_blocks]
    block_size: int,
    slots: NDArray[np.int64],  # [R]
    rows: NDArray[np.int64],  # [T], the slot of each token
    positions: NDArray[np.int64],  # [T]
    query_start: NDArray[np.int32],  # [R + 1]
    seq_lens: NDArray[np.int64],  # [R]
    device: torch.device,
) -> StepLayout:
    blocks, offsets = np.divmod(positions, block_size)
    slot_mapping = table[rows, blocks].astype(np.int64) * block_size + offsets
    width = -(-int(seq_lens.max()) // block_size)
    return StepLayout(
        query_start=torch.from_numpy(query_start).to(device),
        seq_lens=torch.from_numpy(seq_lens.astype(np.int32)).to(device),
        block_table=torch.from_numpy(table[slots, :width]).to(device),
        slot_mapping=torch.from_numpy(slot_mapping).to(device),
        num_tokens=len(positions),
        query_lens_host=np.diff(query_start).tolist(),
        seq_lens_host=seq_lens.tolist(),
    )
