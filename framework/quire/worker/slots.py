"""The tables of the running requests: one row a slot, from its assignment to its end.

Tokens and sampler columns lie on the device. Block tables and counts are kept on the host, where
they are known exactly without asking the device: the plans are what changes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, NewBlocks, SlotAssignment, TokenPatch

COLUMN_DTYPES = {float: torch.float32, int: torch.int64, bool: torch.bool}


@dataclass(slots=True)
class SlotInfo:
    """What the host must know of a slot to run it."""

    num_prompt_tokens: int
    num_logprobs: int | None
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    fields: Mapping[str, Any]
    adapter: AdapterRef | None
    num_prompt_logprobs: int | None = None
    adapter_index: int = -1  # for this step
    active_steps: int = 0  # bit i: sampler step i is not neutral


class SlotTables:
    """Tables for `max_num_seqs` slots.

    Attributes:
        token_ids: `[slots, max_model_len]` int32 on the device.
        num_prompt_tokens: `[slots]` int64 on the device.
        columns: Sampler field -> `[slots]` on the device; also `seed` and `child`.
        block_tables: Per KV group, `[slots, max_blocks]` int32 on the host; 0 where nothing is.
            Blocks that no later token reads may still be named, and be somebody else's by now.
        backend_groups: The KV group of each attention backend; a group whose layers have heads of
            several shapes has several backends, one that has no layers here has none.
        num_known: `[slots]` tokens in `token_ids`, on the host.
        num_computed: `[slots]` tokens whose KV is computed, on the host.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        max_blocks: Sequence[int],
        fields: Sequence[RequestField],
        device: torch.device,
        backend_groups: Sequence[int] | None = None,
    ) -> None:
        self.device = device
        groups = range(len(max_blocks)) if backend_groups is None else backend_groups
        self.backend_groups = tuple(groups)
        self.token_ids = torch.zeros(max_num_seqs, max_model_len, dtype=torch.int32, device=device)
        self.num_prompt_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.fields = tuple(fields)
        self.columns: dict[str, Tensor] = {
            field.name: torch.zeros(max_num_seqs, dtype=COLUMN_DTYPES[field.type], device=device)
            for field in fields
        }
        for name in ("seed", "child"):
            self.columns[name] = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.block_tables = [np.zeros((max_num_seqs, count), np.int32) for count in max_blocks]
        self.num_blocks = [np.zeros(max_num_seqs, np.int64) for _ in max_blocks]
        self.num_known = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.info: list[SlotInfo | None] = [None] * max_num_seqs

    def info_of(self, slot: int) -> SlotInfo:
        """Return what the host knows of a slot.

        Raises:
            RuntimeError: The slot was never assigned.
        """
        info = self.info[slot]
        if info is None:
            raise RuntimeError(f"slot {slot} is scheduled and was never assigned")
        return info

    def assign(self, message: SlotAssignment) -> SlotInfo:
        """Write the whole state of a slot."""
        slot, count = message.slot, len(message.token_ids)
        self.token_ids[slot, :count] = torch.tensor(message.token_ids, dtype=torch.int32)
        self.num_prompt_tokens[slot] = message.num_prompt_tokens
        self.num_known[slot] = count
        self.num_computed[slot] = message.num_computed_tokens
        for group, block_ids in enumerate(message.block_ids):
            self.block_tables[group][slot] = 0
            self.num_blocks[group][slot] = 0
            self.add_blocks(NewBlocks(slot, group, block_ids))
        self.columns["seed"][slot] = message.seed
        self.columns["child"][slot] = message.child
        info = SlotInfo(
            message.num_prompt_tokens,
            message.num_logprobs,
            message.min_tokens,
            message.stop_token_ids,
            message.fields,
            message.adapter,
            message.num_prompt_logprobs,
        )
        self.info[slot] = info
        return info

    def write_fields(self, message: SlotAssignment) -> None:
        """Write the sampler columns of a slot; what a field cannot hold raises."""
        for field in self.fields:
            value = message.fields.get(field.name, field.default)
            self.columns[field.name][message.slot] = value

    def add_blocks(self, message: NewBlocks) -> None:
        """Append block ids to a slot's table."""
        start = int(self.num_blocks[message.group][message.slot])
        end = start + len(message.block_ids)
        self.block_tables[message.group][message.slot, start:end] = message.block_ids
        self.num_blocks[message.group][message.slot] = end

    def patch_tokens(self, message: TokenPatch) -> None:
        """Write tokens that came from elsewhere."""
        start, end = message.position, message.position + len(message.token_ids)
        self.token_ids[message.slot, start:end] = torch.tensor(message.token_ids, dtype=torch.int32)
        self.num_known[message.slot] = end

    def append_tokens(self, slots: Sequence[int], slot_index: Tensor, token_ids: Tensor) -> None:
        """Write one drawn token behind the known ones of each slot; they stay on the device.

        Args:
            slots: The rows' slots.
            slot_index: The same on the device, `[N]` int64.
            token_ids: `[N]` int64.
        """
        host = np.asarray(slots)
        positions = torch.from_numpy(self.num_known[host]).to(self.device)
        self.token_ids[slot_index, positions] = token_ids.to(torch.int32)
        self.num_known[host] += 1
