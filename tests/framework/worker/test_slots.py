import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.interfaces.sampling import RequestField
from quire.messages import NewBlocks, ScheduledRequest, SlotAssignment, TokenPatch
from quire.worker.slots import SlotTables
from quire.worker.step_inputs import build_inputs

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
    assert tables.columns["temperature"][2] == 0.5
    assert tables.columns["top_k"][2] == 0, "a field that is not given has its default"
    assert (tables.columns["seed"][2], tables.columns["child"][2]) == (9, 1)


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


@given(st.lists(st.tuples(st.integers(1, 30), st.data()), min_size=1, max_size=4))
def test_inputs_are_what_each_token_would_say_alone(rows):
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
    for share in requests:
        start = int(tables.num_computed[share.slot])
        for position in range(start, start + share.num_tokens):
            expected_ids.append(100 * share.slot + position)
            block = 16 * share.slot + 1 + position // BLOCK
            expected_slots.append(block * BLOCK + position % BLOCK)
        ends.append(len(expected_ids) - 1)
    assert inputs.input_ids.tolist() == expected_ids
    assert layout.slot_mapping.tolist() == expected_slots
    assert layout.query_start.tolist() == [0, *(end + 1 for end in ends)]
    sampled = [end for end, share in zip(ends, requests, strict=True) if share.num_samples]
    rows_taken = range(len(expected_ids)) if inputs.last_rows is None else inputs.last_rows.tolist()
    assert list(rows_taken) == sampled
