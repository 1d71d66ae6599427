"""A repetition is found as soon as it is complete, and nothing else is one."""

from hypothesis import given
from hypothesis import strategies as st

from quire.engine.repetition import ends_in_repetition
from quire.sampling_params import RepetitionDetectionParams


def test_tokens_of_the_prompt_are_no_part_of_a_pattern():
    params = RepetitionDetectionParams(max_pattern_size=2, min_count=2)
    assert ends_in_repetition([1, 2, 1, 2], 0, params)
    assert not ends_in_repetition([1, 2, 1, 2], 1, params)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(0, 4),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(2, 4),
)
def test_the_end_of_a_completion_is_a_pattern_so_many_times(tokens, num_prompt, low, more, count):
    params = RepetitionDetectionParams(
        min_pattern_size=low, max_pattern_size=low + more, min_count=count
    )
    num_prompt = min(num_prompt, len(tokens) - 1)
    completion = tokens[num_prompt:]
    expected = any(
        completion[-size * count :] == completion[-size:] * count
        for size in range(low, low + more + 1)
        if size * count <= len(completion)
    )
    assert ends_in_repetition(tokens, num_prompt, params) == expected
