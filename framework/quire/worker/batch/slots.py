"""Slot tables: the state of the running requests, one row per slot.

Token ids and sampler fields are on the device. Block tables and counts are on the host, because
only step plans change them. With Triton kernels the device has the block tables as well. `push`
sends the host's changes to the device, once per step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.interfaces.field_types import FieldType
from quire.interfaces.sampling import MAX_POSITION, RequestField, SampledRows
from quire.messages import (
    AdapterRef,
    NewBlocks,
    ScheduledRequest,
    SlotAssignment,
    TokenPatch,
)
from quire.worker.batch.device_tables import DeviceTables
from quire.worker.batch.field_columns import FieldColumns
from quire.worker.batch.state_columns import StateColumns
from quire.worker.device.mirror import BufferSpec, Mirror

FIELD_DTYPES = {float: torch.float32, int: torch.int64, bool: torch.bool}
PROMPT_FIELD = "number of prompt tokens"  # cannot be the name of a request field
TOKENS = 0  # index of the first device table; block tables follow


@dataclass(slots=True, eq=False)
class SlotInfo:
    """Host-side state of a slot; the same object as long as a request owns the slot."""

    num_prompt_tokens: int
    num_logprobs: int | None
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    fields: Mapping[str, Any]
    adapter: AdapterRef | None
    num_prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    active_steps: int = 0  # bit i: sampler step i is not neutral
    companion_slot: int | None = None  # whose row guides this one


class SlotTables:
    """Tables for `max_num_seqs` slots; device tables have an additional row, the padding slot.

    Columns of token sets have `vocab_size` bits.

    Attributes:
        token_ids: Token ids, `[slots + 1, max_model_len]` int32 on the device.
        num_prompt_tokens: Number of prompt tokens, `[slots + 1]` int64 on the device.
        slot_fields: Sampler field -> `[slots + 1]` on the device; also `seed` and `child`. A field
            that is more than a number has the columns that its type declares. The states of
            sampler steps are there as well.
        states: Columns of these states.
        block_tables: Block ids for each KV group, `[slots, max_blocks]` int32 on the host; 0 for
            unused entries. Blocks that no later token reads may remain in the table although they
            belong to another request by now.
        device_tables: Token ids and, if the device has them, the block tables of every KV group, in
            which cells after the blocks of a slot may hold anything.
        backend_groups: KV group of each attention backend. A group whose layers have several head
            shapes has several backends; a group without layers on this device has none.
        padding_slot: Index of the padding slot, a row of the device tables only.
        num_known: Number of tokens in `token_ids`, `[slots]` on the host.
        num_counted: Number of first tokens that `TokenCounts` has read and nothing changed since,
            `[slots]` on the host.
        num_computed: Number of tokens whose KV is computed, `[slots]` on the host.
        adapter_index: Adapter index of each slot in this step, or -1, `[slots]` on the host.
        with_adapter: Slots that were assigned with an adapter.
        with_prompt_logprobs: Slots whose requests need prompt log probabilities.
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
        vocab_size: int = 0,
        states: Sequence[str] = (),
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
        self._columns = FieldColumns(fields, max_num_seqs + 1, vocab_size, device)
        self.states = StateColumns(states, max_num_seqs + 1, device)
        self._numbers = [field for field in fields if not isinstance(field.type, FieldType)]
        self._field_mirror = _field_mirror(self._numbers, max_num_seqs + 1, device)
        self._has_new_fields = False
        self.num_prompt_tokens = self._field_mirror.device[PROMPT_FIELD]
        numbers = {
            name: values
            for name, values in self._field_mirror.device.items()
            if name != PROMPT_FIELD
        }
        self.slot_fields = numbers | self._columns.device | self.states.device
        self.block_tables = [np.zeros((max_num_seqs, count), np.int32) for count in max_blocks]
        self.num_blocks = [np.zeros(max_num_seqs, np.int64) for _ in max_blocks]
        self.num_known = np.zeros(max_num_seqs, np.int64)
        self.num_counted = np.zeros(max_num_seqs, np.int64)
        self.num_computed = np.zeros(max_num_seqs, np.int64)
        self.adapter_index = np.full(max_num_seqs, -1, np.int32)
        self.with_adapter: set[int] = set()
        self.with_prompt_logprobs: set[int] = set()
        self.info: list[SlotInfo | None] = [None] * max_num_seqs

    def info_of(self, slot: int) -> SlotInfo:
        """Return the host-side state of a slot.

        Raises:
            RuntimeError: The slot was never assigned.
        """
        info = self.info[slot]
        if info is None:
            raise RuntimeError(f"slot {slot} is scheduled but was never assigned")
        return info

    def assign(self, message: SlotAssignment) -> SlotInfo:
        """Write the state of a slot, except for its sampler fields."""
        slot = message.slot
        self.device_tables.write(TOKENS, slot, 0, message.token_ids)
        self.num_known[slot] = len(message.token_ids)
        self.num_counted[slot] = 0
        self.num_computed[slot] = message.num_computed_tokens
        for group, block_ids in enumerate(message.block_ids):
            self.block_tables[group][slot] = 0
            self.num_blocks[group][slot] = 0
            self.add_blocks(NewBlocks(slot, group, block_ids))
        slot_fields = {"seed": message.seed, "child": message.child}
        for name, value in {**slot_fields, PROMPT_FIELD: message.num_prompt_tokens}.items():
            self._field_mirror.host[name][slot] = value
        self._has_new_fields = True
        self._track_rare_features(message)
        info = SlotInfo(
            message.num_prompt_tokens,
            message.num_logprobs,
            message.min_tokens,
            message.stop_token_ids,
            message.fields,
            message.adapter,
            message.num_prompt_logprobs,
            message.logprob_token_ids,
            companion_slot=message.companion_slot,
        )
        self.info[slot] = info
        return info

    def write_fields(self, message: SlotAssignment) -> None:
        """Write the sampler fields of a slot; raises for a value that a field cannot hold."""
        self._has_new_fields = True
        with np.errstate(over="raise"):
            for field in self._numbers:
                value = message.fields.get(field.name, field.worker_default)
                self._field_mirror.host[field.name][message.slot] = value
        self._columns.write(message.slot, message.fields)

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
        """Write tokens that the sampler did not append."""
        self.device_tables.write(TOKENS, message.slot, message.position, message.token_ids)
        self.num_known[message.slot] = message.position + len(message.token_ids)
        if message.position < self.num_counted[message.slot]:
            self.num_counted[message.slot] = 0

    def push(self) -> None:
        """Send all changes to the device, without waiting for it."""
        self.device_tables.push()
        self._columns.push()
        self.states.push()
        if self._has_new_fields:
            self._has_new_fields = False
            self._field_mirror.push()

    def append_tokens(
        self,
        slots: NDArray[np.int64],  # [N]
        token_ids: Tensor,  # [N] int32
    ) -> None:
        """Append one sampled token to each slot, on the device only."""
        self.device_tables.put(TOKENS, slots, self.num_known[slots], token_ids)
        self.note_sampled(slots)

    def note_sampled(self, slots: NDArray[np.int64]) -> None:  # [N]
        """Count one more known token for each slot."""
        self.num_known[slots] += 1

    def note_computed(self, requests: Sequence[ScheduledRequest]) -> None:
        """Count the scheduled tokens of a step as computed."""
        slots = np.array([request.slot for request in requests], np.int64)
        self.num_computed[slots] += np.array([request.num_tokens for request in requests], np.int64)

    def sampled_rows(
        self,
        slots: Tensor,  # [N] int64
        positions: Tensor,  # [N] int64
        fields: Sequence[Mapping[str, Any]] = (),
        *,
        all_greedy: bool = False,
        max_position: int = MAX_POSITION,
    ) -> SampledRows:
        """Describe the rows of some slots to the steps of the sampling pipeline.

        Args:
            slots: Slot of each row.
            positions: Position of the token that is sampled from each row.
            fields: Sampler fields of each row; empty if the host does not know them.
            all_greedy: Whether every row is known to be greedy.
            max_position: Upper bound of the positions that the host knows.
        """
        return SampledRows(
            slots=slots,
            positions=positions,
            slot_fields=self.slot_fields,
            token_ids=self.token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            all_greedy=all_greedy,
            host_fields=fields,
            max_position=max_position,
        )

    def _track_rare_features(self, message: SlotAssignment) -> None:
        """Track the slots that use rare features, so that a step need not search for them."""
        self.adapter_index[message.slot] = -1
        rare = (
            (self.with_adapter, message.adapter),
            (self.with_prompt_logprobs, message.num_prompt_logprobs),
        )
        for slots, need in rare:
            slots.discard(message.slot)
            if need is not None:
                slots.add(message.slot)


def _field_mirror(fields: Sequence[RequestField], size: int, device: torch.device) -> Mirror:
    slot_fields = {
        field.name: BufferSpec(size, FIELD_DTYPES[field.type])
        for field in fields
        if not isinstance(field.type, FieldType)
    }
    integer_fields = dict.fromkeys(("seed", "child", PROMPT_FIELD), BufferSpec(size, torch.int64))
    return Mirror(slot_fields | integer_fields, device)
