"""Lines of results are found again, each once."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cli.batch.written_results import LineSet


@given(st.sets(st.integers(1, 70)), st.integers(-5, 90))
def test_a_set_of_lines_has_what_was_added_once(numbers, other):
    lines = LineSet(70)
    assert all(lines.add(number) for number in numbers)
    assert lines.size == len(numbers)
    assert [n for n in range(1, 71) if n in lines] == sorted(numbers)
    assert lines.add(other) == (1 <= other <= 70 and other not in numbers)
