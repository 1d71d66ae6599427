import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, NewBlocks, ScheduledRequest, SlotAssignment, TokenPatch
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import build_inputs

FIELDS = [RequestField("temperature", float, 1.0), RequestField("top_k", int, 0)]
BLOCK = 4


def make_tables(num_slots=4, max_len=64):
    return SlotTables(num_slots, max_len, [max_len // BLOCK], FIELDS, torch.device("cpu"))


def assignment(slot, token_ids, computed=0, blocks=None):
    needed = -(-len(token_ids) // BLOCK)
    return SlotAssignment(
        slot=slot,
        token_ids=list(token_ids),
        num_computed_tokens=computed,
        block_ids=[blocks if blocks is not None else list(range(1, needed + 1))],
        num_prompt_tokens=len(token_ids),
        fields={"temperature": 0.5},
        seed=9,
        child=1,
    )


def test_an_assignment_writes_the_whole_row():
    tables = make_tables()
    message = assignment(2, [5, 6, 7])
    tables.assign(message)
    tables.write_fields(message)
    tables.push()
    assert tables.token_ids[2, :3].tolist() == [5, 6, 7]
    assert tables.slot_fields["temperature"][2] == 0.5
    assert tables.slot_fields["top_k"][2] == 0, "a field that is not given has its default"
    assert (tables.slot_fields["seed"][2], tables.slot_fields["child"][2]) == (9, 1)


def test_a_slot_that_is_given_out_again_keeps_nothing():
    tables = make_tables()
    tables.assign(assignment(0, range(20), blocks=[9, 8, 7, 6, 5]))
    tables.assign(assignment(0, [1], blocks=[3]))
    assert tables.block_tables[0][0].tolist() == [3] + [0] * 15


def test_blocks_and_patches_are_appended():
    tables = make_tables()
    tables.assign(assignment(1, range(4), blocks=[2]))
    tables.add_blocks(NewBlocks(1, 0, [7, 8]))
    tables.patch_tokens(TokenPatch(1, 4, [40, 41]))
    tables.push()
    assert tables.block_tables[0][1, :4].tolist() == [2, 7, 8, 0]
    assert tables.num_known[1] == 6
    assert tables.token_ids[1, 4:6].tolist() == [40, 41]


def changed(message, **changes):
    return msgspec.structs.replace(message, **changes)


ADAPTER = AdapterRef("loud", "/somewhere", "a hash")


def test_a_slot_that_is_assigned_again_has_no_adapter_nor_rare_features():
    tables = make_tables()
    with_features = changed(assignment(1, [1]), adapter=ADAPTER, num_prompt_logprobs=3)
    assert tables.assign(with_features).num_prompt_logprobs == 3
    assert tables.info_of(1).adapter == ADAPTER
    tables.adapter_index[1] = 2
    assert (tables.with_adapter, tables.with_prompt_logprobs) == ({1}, {1})
    tables.assign(assignment(1, [5]))
    assert tables.adapter_index[1] == -1
    assert (tables.with_adapter, tables.with_prompt_logprobs) == (set(), set())
    assert tables.info_of(1).adapter is None


def test_rare_features_of_a_request_are_tracked():
    message = changed(
        assignment(0, [1, 2]), num_logprobs=4, min_tokens=5, stop_token_ids=(6, 7),
        num_prompt_logprobs=0, num_prompt_tokens=2,
    )  # fmt: skip
    info = make_tables().assign(message)
    assert (info.num_logprobs, info.num_prompt_logprobs, info.min_tokens) == (4, 0, 5)
    assert (info.stop_token_ids, info.num_prompt_tokens) == ((6, 7), 2)


def test_blocks_of_a_slot_that_is_given_out_again_begin_anew():
    tables = make_tables()
    tables.assign(assignment(0, range(8), blocks=[9, 8]))
    tables.add_blocks(NewBlocks(0, 0, [7]))
    tables.assign(assignment(0, [1], blocks=[3]))
    tables.add_blocks(NewBlocks(0, 0, [4]))
    tables.add_blocks(NewBlocks(0, 0, [5]))
    assert tables.block_tables[0][0, :4].tolist() == [3, 4, 5, 0]


def test_a_patch_in_the_middle_ends_what_is_known():
    tables = make_tables()
    tables.assign(assignment(1, range(6)))
    tables.patch_tokens(TokenPatch(1, 2, [40, 41]))
    tables.push()
    assert tables.num_known[1] == 4
    assert tables.token_ids[1, :4].tolist() == [0, 1, 40, 41]


def test_computed_tokens_add_up_and_sampled_ones_are_known():
    tables = make_tables()
    tables.assign(assignment(0, range(5), 1))
    tables.assign(assignment(3, range(7), 0))
    tables.note_computed([ScheduledRequest(3, 2, 0), ScheduledRequest(0, 1, 0)])
    tables.note_computed([ScheduledRequest(3, 4, 0)])
    assert tables.num_computed.tolist() == [2, 0, 0, 6]
    tables.push()
    tables.append_tokens(np.array([3, 0]), torch.tensor([70, 71], dtype=torch.int32))
    assert tables.num_known.tolist() == [6, 0, 0, 8]
    assert (int(tables.token_ids[3, 7]), int(tables.token_ids[0, 5])) == (70, 71)


@pytest.mark.parametrize(
    "fields", [{"temperature": 1e39}, {"temperature": -1e39}, {"top_k": 2**63}, {"top_k": -(2**70)}]
)
def test_a_value_that_a_field_cannot_hold_is_an_error(fields):
    tables = make_tables()
    with pytest.raises((FloatingPointError, OverflowError)):
        tables.write_fields(changed(assignment(0, [1]), fields=fields))


def test_the_largest_values_of_a_field_are_kept():
    tables = make_tables()
    fields = {"temperature": 3.4028234e38, "top_k": 2**63 - 1}
    tables.assign(changed(assignment(0, [1]), seed=2**63 - 1, child=7))
    tables.write_fields(changed(assignment(0, [1]), fields=fields))
    tables.push()
    assert tables.slot_fields["top_k"][0] == 2**63 - 1
    assert torch.isfinite(tables.slot_fields["temperature"][0])
    assert tables.slot_fields["seed"][0] == 2**63 - 1


def test_fields_are_sent_once_after_a_change():
    tables = make_tables()
    tables.write_fields(assignment(0, [1]))
    tables.push()
    tables.slot_fields["temperature"][0] = 9.0
    tables.push()
    assert tables.slot_fields["temperature"][0] == 9.0, "nothing new: nothing is sent"
    tables.write_fields(assignment(0, [1]))
    tables.push()
    assert tables.slot_fields["temperature"][0] == 0.5


def test_each_group_has_its_blocks_on_the_device_too():
    cpu = torch.device("cpu")
    tables = SlotTables(2, 16, [4, 3], FIELDS, cpu, has_device_blocks=True)
    message = changed(assignment(1, range(5)), block_ids=[[5, 6], [7]])
    tables.assign(message)
    tables.add_blocks(NewBlocks(1, 1, [8]))
    tables.push()
    tokens, first, second = tables.device_tables.tables
    assert tokens[1, :5].tolist() == [0, 1, 2, 3, 4]
    assert first[1].tolist() == [5, 6, 0, 0]
    assert second[1].tolist() == [7, 8, 0]
    assert not first[0].any()
    assert not second[0].any()


def test_a_slot_that_was_never_given_out_is_named():
    with pytest.raises(RuntimeError, match="slot 3 is scheduled but was never assigned"):
        make_tables().info_of(3)


@given(st.lists(st.tuples(st.integers(1, 30), st.data()), min_size=1, max_size=4))
def test_inputs_are_those_of_each_token_alone(rows):
    tables = make_tables()
    requests = []
    for slot, (length, data) in enumerate(rows):
        computed = data.draw(st.integers(0, length - 1))
        count = data.draw(st.integers(1, length - computed))
        token_ids = [100 * slot + i for i in range(length)]
        blocks = [16 * slot + 1 + i for i in range(-(-length // BLOCK))]
        tables.assign(assignment(slot, token_ids, computed, blocks))
        is_last = computed + count == length
        requests.append(ScheduledRequest(slot, count, int(is_last)))
    tables.push()
    inputs = build_inputs(requests, tables, [BLOCK])
    (layout,) = inputs.layouts
    expected_ids, expected_slots, ends = [], [], []
    for request in requests:
        start = int(tables.num_computed[request.slot])
        for position in range(start, start + request.num_tokens):
            expected_ids.append(100 * request.slot + position)
            block = 16 * request.slot + 1 + position // BLOCK
            expected_slots.append(block * BLOCK + position % BLOCK)
        ends.append(len(expected_ids) - 1)
    assert inputs.input_ids.tolist() == expected_ids
    assert layout.slot_mapping.tolist() == expected_slots
    assert layout.query_start.tolist() == [0, *(end + 1 for end in ends)]
    assert layout.max_query_len == max(request.num_tokens for request in requests)
    sampled = [end for end, request in zip(ends, requests, strict=True) if request.num_samples]
    rows_taken = range(len(expected_ids)) if inputs.last_rows is None else inputs.last_rows.tolist()
    assert list(rows_taken) == sampled
