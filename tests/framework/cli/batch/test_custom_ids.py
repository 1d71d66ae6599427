"""Names of requests: an equal one is found wherever it was."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cli.batch.custom_ids import CustomIds


@given(st.lists(st.text(max_size=3), max_size=30))
def test_a_name_that_was_seen_is_found_with_its_first_line(names):
    with CustomIds() as ids:
        for line, name in enumerate(names, 1):
            earlier = names.index(name) + 1
            assert ids.add(name, line) == (None if earlier == line else earlier)


def test_many_names_are_kept():
    with CustomIds() as ids:
        assert all(ids.add(f"request-{n}", n) is None for n in range(20_000))
        assert ids.add("request-7", 20_000) == 7
