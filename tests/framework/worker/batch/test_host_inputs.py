"""Gathered inputs of a decode step are those that `step_inputs` builds, whatever came before."""

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.messages import NewBlocks, ScheduledRequest, SlotAssignment, TokenPatch
from quire.worker.batch.host_inputs import HostInputs
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import build_inputs

pytestmark = NEEDS_COMPILER

MAX_SEQS, MAX_LEN, MAX_REQUESTS = 5, 40, 4
BLOCK_SIZES = {0: 16, 1: 4}  # by KV group
BACKEND_GROUPS = (1, 0, 1)  # the second group has heads of two shapes
SIZES = [BLOCK_SIZES[group] for group in BACKEND_GROUPS]
CPU = torch.device("cpu")


def blocks_of(length: int, size: int) -> int:
    return -(-length // size)


class DecodeSteps(RuleBasedStateMachine):
    """Slots of two engines, whose decode steps gather their inputs in two ways."""

    def __init__(self) -> None:
        super().__init__()
        widths = [blocks_of(MAX_LEN, size) for size in BLOCK_SIZES.values()]
        self.plain, self.tables = (
            SlotTables(MAX_SEQS, MAX_LEN, widths, [], CPU, BACKEND_GROUPS) for _ in range(2)
        )
        self.inputs = HostInputs(self.tables, SIZES, MAX_REQUESTS)
        self.num_blocks = 0
        self.lengths: dict[int, int] = {}

    def new_blocks(self, count: int) -> list[int]:
        self.num_blocks += count
        return list(range(self.num_blocks - count + 1, self.num_blocks + 1))

    def change(self, what) -> None:
        for tables in (self.plain, self.tables):
            what(tables)

    @rule(slot=st.integers(0, MAX_SEQS - 1), length=st.integers(1, MAX_LEN - 1), data=st.data())
    def assign(self, slot: int, length: int, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, 1000))
        message = SlotAssignment(
            slot=slot,
            token_ids=[first + index for index in range(length)],
            num_computed_tokens=length - 1,
            block_ids=[self.new_blocks(blocks_of(length, size)) for size in BLOCK_SIZES.values()],
            num_prompt_tokens=length,
            fields={},
            seed=slot,
            child=0,
        )
        self.change(lambda tables: tables.assign(message))
        self.change(lambda tables: tables.adapter_index.__setitem__(slot, first % 3 - 1))
        self.lengths[slot] = length

    @precondition(lambda self: self.lengths)
    @rule(data=st.data())
    def patch(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.lengths)))
        message = TokenPatch(slot, self.lengths[slot] - 1, [data.draw(st.integers(0, 99))])
        self.change(lambda tables: tables.patch_tokens(message))

    @precondition(lambda self: any(length < MAX_LEN for length in self.lengths.values()))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        able = [slot for slot, length in self.lengths.items() if length < MAX_LEN]
        slots = data.draw(
            st.lists(st.sampled_from(able), min_size=1, max_size=MAX_REQUESTS, unique=True)
        )
        self.change(SlotTables.push)
        requests = [ScheduledRequest(slot, 1, 1) for slot in slots]
        expected = build_inputs(requests, self.plain, SIZES)
        self.inputs.send_decode(slots)
        self.inputs.gather_decode(len(slots))
        found = self.inputs.decode_step(len(slots))
        assert found.input_ids.tolist() == expected.input_ids.tolist()
        assert found.positions.tolist() == expected.positions.tolist()
        for ours, theirs in zip(found.layouts, expected.layouts, strict=True):
            for name in ("query_start", "seq_lens", "slot_mapping"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name))
            assert ours.num_tokens == theirs.num_tokens
            assert ours.max_query_len == theirs.max_query_len == 1
        for row, slot in enumerate(slots):
            for group, layout, plain in zip(
                BACKEND_GROUPS, found.layouts, expected.layouts, strict=True
            ):
                used = blocks_of(self.lengths[slot], BLOCK_SIZES[group])
                assert torch.equal(layout.block_table[row, :used], plain.block_table[row, :used])
        positions = self.inputs.sampled_positions[: len(slots)]
        assert positions.tolist() == [self.lengths[slot] for slot in slots]
        indexes = self.inputs.adapter_batch(len(slots)).index
        assert indexes.tolist() == self.plain.adapter_index[slots].tolist()
        sampled = torch.tensor(data.draw(tokens(len(slots))), dtype=torch.int32)
        self.sample(slots, sampled)

    def sample(self, slots: list[int], sampled: torch.Tensor) -> None:
        """Append the tokens, and blocks for those that need one."""
        requests = [ScheduledRequest(slot, 1, 1) for slot in slots]
        self.change(lambda tables: tables.note_computed(requests))
        index = torch.tensor(slots).numpy()
        self.plain.append_tokens(index, sampled)
        self.inputs.append(sampled)
        self.tables.note_sampled(index)
        for slot in slots:
            length = self.lengths[slot] = self.lengths[slot] + 1
            for group, size in BLOCK_SIZES.items():
                if blocks_of(length, size) > blocks_of(length - 1, size):
                    added = NewBlocks(slot, group, self.new_blocks(1))
                    self.change(lambda tables, added=added: tables.add_blocks(added))

    @invariant()
    def tokens_are_the_same(self) -> None:
        self.change(SlotTables.push)
        assert torch.equal(self.tables.token_ids, self.plain.token_ids)


def tokens(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count)


DecodeSteps.TestCase.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
TestDecodeSteps = DecodeSteps.TestCase


def test_a_group_without_layers_here_has_no_layout():
    tables = SlotTables(2, 16, [1, 4], [], CPU, (1,))
    inputs = HostInputs(tables, [4], 2)
    tables.block_tables[1][0] = [7, 0, 0, 0]
    inputs.send_decode([0])
    inputs.gather_decode(1)
    (layout,) = inputs.decode_step(1).layouts
    assert layout.slot_mapping.tolist() == [28]
    assert layout.block_table[0, :1].tolist() == [7]


def test_other_token_ids_than_int32_are_refused():
    inputs = HostInputs(SlotTables(2, 16, [], [], CPU), [], 2)
    for wrong in (torch.zeros(2, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)[::2]):
        with pytest.raises(ValueError, match="contiguous int32"):
            inputs.append(wrong)
