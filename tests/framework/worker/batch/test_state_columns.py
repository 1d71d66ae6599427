"""Columns of carried states have what was written last, by the host or on the device."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.worker.batch.state_columns import StateColumns

CPU = torch.device("cpu")
NAMES = ("a", "b", "c")
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows = st.lists(numbers, min_size=2, max_size=2)
changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), st.integers(0, 3), st.dictionaries(st.sampled_from(NAMES), numbers)
        ),
        st.tuples(st.just("put"), st.dictionaries(st.integers(0, 3), rows, min_size=1)),
    ),
    max_size=20,
)


@given(changes)
@settings(deadline=None)
def test_each_slot_has_what_was_written_last(changes):
    columns = StateColumns(NAMES, 4, CPU)
    expected = [dict.fromkeys(NAMES, 0.0) for _ in range(4)]
    for kind, *change in changes:
        if kind == "write":
            slot, values = change
            columns.write(slot, values)
            expected[slot] = dict.fromkeys(NAMES, 0.0) | values
        else:
            columns.push()  # as before every step of the engine
            slots, values = list(change[0]), list(change[0].values())
            columns.put(torch.tensor(slots), ("b", "c"), torch.tensor(values))
            for slot, (b, c) in change[0].items():
                expected[slot] |= {"b": b, "c": c}
    columns.push()
    found = [{name: columns.device[name][slot].item() for name in NAMES} for slot in range(4)]
    assert found == expected


def test_without_states_there_is_nothing_to_write():
    columns = StateColumns((), 4, CPU)
    columns.write(2, {})
    columns.push()
    assert columns.device == {}
