"""Counts of sampled tokens follow every way in which a slot's tokens change."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.messages import SlotAssignment, TokenPatch
from quire.worker.batch.slots import SlotTables
from quire.worker.sampling.token_counts import TokenCounts

V, SLOTS, MAX_LEN = 6, 3, 24
tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=8)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, SLOTS - 1), tokens, st.integers(1, 8)),
        st.tuples(st.just("append"), st.integers(0, SLOTS - 1), st.integers(0, V - 1)),
        st.tuples(st.just("patch"), st.integers(0, SLOTS - 1), st.integers(0, 9), tokens),
        st.tuples(st.just("count"), st.sets(st.integers(0, SLOTS - 1), min_size=1)),
    ),
    max_size=30,
)


def assign(tables, slot, token_ids, num_prompt):
    message = SlotAssignment(
        slot=slot, token_ids=list(token_ids), num_computed_tokens=0, block_ids=[],
        num_prompt_tokens=num_prompt, fields={}, seed=0, child=0,
    )  # fmt: skip
    tables.assign(message)


@given(changes)
@settings(deadline=None)
def test_counts_are_those_of_a_recount_after_any_changes(changes):
    tables = SlotTables(SLOTS, MAX_LEN, [], [], torch.device("cpu"))
    counts, known = TokenCounts(tables, V), {}
    for slot in range(SLOTS):
        known[slot] = ([0], 1)
        assign(tables, slot, *known[slot])
    for kind, *given_ in changes:
        if kind == "assign":
            slot, token_ids, num_prompt = given_
            known[slot] = (token_ids, min(num_prompt, len(token_ids)))
            assign(tables, slot, *known[slot])
        elif kind == "append" and len(known[given_[0]][0]) < MAX_LEN:
            slot, token_id = given_
            tables.push()
            tables.append_tokens(np.array([slot]), torch.tensor([token_id], dtype=torch.int32))
            known[slot] = ([*known[slot][0], token_id], known[slot][1])
        elif kind == "patch":
            slot, back, token_ids = given_
            before, num_prompt = known[slot]
            position = max(num_prompt, len(before) - back)
            tables.patch_tokens(TokenPatch(slot, position, token_ids[: MAX_LEN - position]))
            known[slot] = (before[:position] + token_ids[: MAX_LEN - position], num_prompt)
        elif kind == "count":
            check(tables, counts, known, sorted(given_[0]))
    check(tables, counts, known, range(SLOTS))


def check(tables, counts, known, slots):
    tables.push()
    table, num_counted = counts.update(list(slots))
    for slot in slots:
        token_ids, num_prompt = known[slot]
        expected = torch.bincount(torch.tensor(token_ids[num_prompt:]).long(), minlength=V)
        assert table[slot].tolist() == expected.tolist()
        assert num_counted[slot] == len(token_ids)


def test_a_token_id_that_a_broken_sampler_returned_is_not_counted():
    tables = SlotTables(SLOTS, MAX_LEN, [], [], torch.device("cpu"))
    assign(tables, 0, [1, V, -1, 2], 1)
    tables.push()
    assert TokenCounts(tables, V).update([0])[0][0].tolist() == [0, 0, 1, 0, 0, 0]
