"""How large a schema in normal form is when it is written."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire_structured_output.schemas.listed_arrays import with_listed_arrays
from quire_structured_output.schemas.written_size import MAX_WRITTEN, charge_written, written_size

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab", max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab", max_size=9), inner),
)


@given(VALUES)
def test_the_size_is_near_the_length_of_the_text(value):
    assert len(json.dumps(value)) - 4 <= written_size(value) <= 2 * len(json.dumps(value)) + 4


def test_a_shared_part_counts_each_time_and_is_read_once():
    part = {"type": "null"}
    for _ in range(200):
        part = {"anyOf": [part, part]}
    assert written_size(part) > 2**200


def test_the_schemas_of_a_constraint_have_a_limit_together():
    spent = Counter()
    charge_written(spent, MAX_WRITTEN)
    with pytest.raises(GrammarError, match=f"more than {MAX_WRITTEN} characters"):
        charge_written(spent, 1)


def test_the_listed_arrays_of_unique_items_are_charged_as_they_are_written():
    spent = Counter()
    schema = {"type": "array", "items": {"enum": list("abc")}, "x-unique": True}
    listed = with_listed_arrays(schema, spent)["allOf"][0]["anyOf"][1]["enum"]
    assert len(listed) == 1 + 3 + 6 + 6
    assert spent["written"] == sum(map(written_size, listed))
