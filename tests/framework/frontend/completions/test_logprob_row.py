"""A row reads like a dict, and takes a fraction of its memory."""

import gc
import tracemalloc

import pytest

from quire.frontend.completions.logprob_row import LOWEST_LOGPROB, LogprobRow
from quire.messages import TokenLogprobs
from quire.outputs import Logprob

MAX_BYTES = 40  # a candidate; a dict of objects takes more than 200


def text_of(token_id):
    return f"t{token_id}"


def test_it_is_a_mapping_with_the_token_that_stands_there_first():
    row = LogprobRow(TokenLogprobs([7, 3, 9], [-2.5, -0.25, float("-inf")], 12), text_of)
    expected = {
        7: Logprob(-2.5, 12, "t7"),
        3: Logprob(-0.25, 1, "t3"),
        9: Logprob(LOWEST_LOGPROB, 2, "t9"),
    }
    assert row == expected
    assert [*row.items()] == [*expected.items()] == [*row.as_dict().items()]
    assert (len(row), 9 in row, 4 in row, "x" in row, 2**70 in row) == (3, True, *[False] * 3)
    with pytest.raises(KeyError, match="4"):
        row[4]


def test_a_chosen_token_among_the_most_likely_is_listed_once_with_its_rank():
    row = LogprobRow(TokenLogprobs([3, 9, 3], [-1.0, -0.5, -1.0], 2), text_of)
    assert [*row.items()] == [(3, Logprob(-1.0, 2, "t3")), (9, Logprob(-0.5, 1, "t9"))]
    assert len(row) == 2


def test_a_candidate_takes_few_bytes():
    width, num_rows = 21, 500
    gc.collect()
    tracemalloc.start()
    rows = [
        LogprobRow(
            TokenLogprobs(
                [1000 * i + j for j in range(width)], [-0.5 * i - j for j in range(width)], 1
            ),
            text_of,
        )
        for i in range(num_rows)
    ]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / (width * len(rows)) < MAX_BYTES


def test_ranks_count_from_the_most_likely_and_the_chosen_one_has_its_own():
    row = LogprobRow(TokenLogprobs([7, 3, 9, 4], [-5.0, -0.1, -0.2, -0.3], 40), text_of)
    assert {token_id: found.rank for token_id, found in row.items()} == {7: 40, 3: 1, 9: 2, 4: 3}
    assert [*row] == [7, 3, 9, 4]
    assert len(row) == 4
    again = LogprobRow(TokenLogprobs([9, 3, 9], [-0.2, -0.1, -0.2], 2), text_of)
    assert ([*again], len(again), len(again.as_dict())) == ([9, 3], 2, 2)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (-1.5, -1.5),
        (LOWEST_LOGPROB - 1, LOWEST_LOGPROB),
        (float("-inf"), LOWEST_LOGPROB),
        (float("inf"), LOWEST_LOGPROB),
        (float("nan"), LOWEST_LOGPROB),
        (0.0, 0.0),
    ],
)
def test_a_number_is_one_that_json_has(number, shown):
    row = LogprobRow(TokenLogprobs([7], [number], 1), text_of)
    assert row[7].logprob == shown
