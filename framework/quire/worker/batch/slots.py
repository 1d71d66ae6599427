"""The tables of the running requests: one row a slot, from its assignment to its end.

Tokens and sampler columns lie on the device. Block tables and counts are kept on the host, where
they are known exactly without asking the device: the plans are what changes them. Kernels read the
block tables as well, so there the device has them too. What the host writes is on the device after
`push`, once a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.interfaces.sampling import RequestField
from quire.messages import (
    AdapterRef,
    NewBlocks,
    ScheduledRequest,
    SlotAssignment,
    TokenPatch,
)
from quire.worker.batch.device_tables import DeviceTables
from quire.worker.device.mirror import BufferSpec, Mirror

FIELD_DTYPES = {float: torch.float32, int: torch.int64, bool: torch.bool}
PROMPT_FIELD = "number of prompt tokens"  # no request field is called so
TOKENS = 0  # the first of the device's tables; block tables follow


@dataclass(slots=True, eq=False)
class SlotInfo:
    """What the host must know of a slot to run it; the same one as long as a request owns it."""

    num_prompt_tokens: int
    num_logprobs: int | None
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    fields: Mapping[str, Any]
    adapter: AdapterRef | None
    num_prompt_logprobs: int | None = None
    active_steps: int = 0  # bit i: sampler step i is not neutral


class SlotTables:
    """Tables for `max_num_seqs` slots; those of the device have one row more, the spare slot.

    Attributes:
        token_ids: `[slots + 1, max_model_len]` int32 on the device.
        num_prompt_tokens: `[slots + 1]` int64 on the device.
        columns: Sampler field -> `[slots + 1]` on the device; also `seed` and `child`.
        block_tables: Per KV group, `[slots, max_blocks]` int32 on the host; 0 where nothing is.
            Blocks that no later token reads may still be named, and be somebody else's by now.
        device_tables: Token ids and, if the device has them, the block tables of every KV group;
            there, cells behind the blocks of a slot may hold anything.
        backend_groups: The KV group of each attention backend; a group whose layers have heads of
            several shapes has several backends, one that has no layers here has none.
        padding_slot: Its row on the device is for padding.
        num_known: `[slots]` tokens in `token_ids`, on the host.
        num_computed: `[slots]` tokens whose KV is computed, on the host.
        adapter_index: `[slots]` where each slot's adapter is for this step, or -1; on the host.
        with_adapter: The slots that were given out with an adapter.
        with_prompt_logprobs: Those whose requests want log probabilities of their prompts.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        max_blocks: Sequence[int],
        fields: Sequence[RequestField],
        device: torch.device,
        backend_groups: Sequence[int] | None = None,
        *,
        has_device_blocks: bool = False,
    ) -> None:
        self.device = device
        groups = range(len(max_blocks)) if backend_groups is None else backend_groups
        self.backend_groups = tuple(groups)
        self.padding_slot = max_num_seqs
        self.has_device_blocks = has_device_blocks
        widths = [max_model_len, *(max_blocks if has_device_blocks else ())]
        self.device_tables = DeviceTables(max_num_seqs + 1, widths, device)
        self.token_ids = self.device_tables.tables[TOKENS]
        self.fields = tuple(fields)
        self._columns = _columns(fields, max_num_seqs + 1, device)
        self._has_new_fields = False
        self.num_prompt_tokens = self._columns.device[PROMPT_FIELD]
        self.columns = {
            name: column for name, column in self._columns.device.items() if name != PROMPT_FIELD
        }
        self.block_tables = [np.zeros((max_num_seqs, count), np.int32) for count in max_blocks]
        self.num_blocks = [np.zeros(max_num_seqs, np.int64) for _ in max_blocks]
        self.num_known = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.adapter_index = np.full(max_num_seqs, -1, np.int32)
        self.with_adapter: set[int] = set()
        self.with_prompt_logprobs: set[int] = set()
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
        slot = message.slot
        self.device_tables.write(TOKENS, slot, 0, message.token_ids)
        self.num_known[slot] = len(message.token_ids)
        self.num_computed[slot] = message.num_computed_tokens
        for group, block_ids in enumerate(message.block_ids):
            self.block_tables[group][slot] = 0
            self.num_blocks[group][slot] = 0
            self.add_blocks(NewBlocks(slot, group, block_ids))
        columns = {"seed": message.seed, "child": message.child}
        for name, value in {**columns, PROMPT_FIELD: message.num_prompt_tokens}.items():
            self._columns.host[name][slot] = value
        self._has_new_fields = True
        self._note_needs(message)
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
        self._has_new_fields = True
        with np.errstate(over="raise"):
            for field in self.fields:
                value = message.fields.get(field.name, field.default)
                self._columns.host[field.name][message.slot] = value

    def add_blocks(self, message: NewBlocks) -> None:
        """Append block ids to a slot's table."""
        slot, group = message.slot, message.group
        start = int(self.num_blocks[group][slot])
        end = start + len(message.block_ids)
        self.block_tables[group][slot, start:end] = message.block_ids
        self.num_blocks[group][slot] = end
        if self.has_device_blocks:
            self.device_tables.write(TOKENS + 1 + group, slot, start, message.block_ids)

    def patch_tokens(self, message: TokenPatch) -> None:
        """Write tokens that came from elsewhere."""
        self.device_tables.write(TOKENS, message.slot, message.position, message.token_ids)
        self.num_known[message.slot] = message.position + len(message.token_ids)

    def push(self) -> None:
        """Bring all that changed to the device, without waiting for it."""
        self.device_tables.push()
        if self._has_new_fields:
            self._has_new_fields = False
            self._columns.push()

    def append_tokens(
        self,
        slots: NDArray[np.int64],  # [N]
        token_ids: Tensor,  # [N] int32
    ) -> None:
        """Write one drawn token behind the known ones of each slot; they stay on the device."""
        self.device_tables.put(TOKENS, slots, self.num_known[slots], token_ids)
        self.note_sampled(slots)

    def note_sampled(self, slots: NDArray[np.int64]) -> None:  # [N]
        """Take in that one token more of each slot is known, on the device at least."""
        self.num_known[slots] += 1

    def note_computed(self, requests: Sequence[ScheduledRequest]) -> None:
        """Take in that a step computes the KV of so many tokens more of each slot."""
        slots = np.array([share.slot for share in requests], np.int64)
        self.num_computed[slots] += np.array([share.num_tokens for share in requests], np.int64)

    def _note_needs(self, message: SlotAssignment) -> None:
        """Keep the slots with rare wishes apart, so that a step need not look for them."""
        self.adapter_index[message.slot] = -1
        rare = (
            (self.with_adapter, message.adapter),
            (self.with_prompt_logprobs, message.num_prompt_logprobs),
        )
        for slots, need in rare:
            slots.discard(message.slot)
            if need is not None:
                slots.add(message.slot)


def _columns(fields: Sequence[RequestField], size: int, device: torch.device) -> Mirror:
    columns = {field.name: BufferSpec(size, FIELD_DTYPES[field.type]) for field in fields}
    whole = dict.fromkeys(("seed", "child", PROMPT_FIELD), BufferSpec(size, torch.int64))
    return Mirror(columns | whole, device)
