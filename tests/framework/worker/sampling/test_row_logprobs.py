"""Each row gets its number of top tokens, with values that JSON can hold."""

import pytest
import torch

from quire.worker.sampling.row_logprobs import MIN_LOGPROB, row_logprobs

LOGITS = torch.tensor([[0.0, 3.0, 2.0, -1.0], [5.0, 0.0, 1.0, 4.0]])


def test_each_row_gets_its_own_number_of_top_tokens():
    first, none, second = row_logprobs(LOGITS, torch.tensor([1, 2]), [1, None, 3]).read()
    assert none is None
    assert first.token_ids == [1, 1]
    assert second.token_ids == [2, 0, 3, 2]
    expected = LOGITS[1].log_softmax(-1)[[2, 0, 3, 2]].tolist()
    assert second.logprobs == pytest.approx(expected)
    assert len(first.logprobs) == 2


def test_a_row_with_no_top_tokens_gets_its_own_token():
    (row,) = row_logprobs(LOGITS[:1], torch.tensor([2]), [0]).read()
    assert (row.token_ids, row.rank) == ([2], 2)


def test_the_most_likely_token_has_the_first_rank_also_among_equals():
    logits = torch.tensor([[2.0, 2.0, 1.0]] * 3)
    rows = row_logprobs(logits, torch.tensor([0, 1, 2]), [0, 0, 0]).read()
    assert [row.rank for row in rows] == [1, 1, 3]


def test_a_row_that_names_tokens_gets_those():
    named = [(), (), (3, 0, 3)]
    token_ids = torch.tensor([1, 2])
    top, none, own = row_logprobs(LOGITS, token_ids, [2, None, 0], named).read()
    assert none is None
    assert top.token_ids == [1, 1, 2]
    assert (own.token_ids, own.rank) == ([2, 3, 0, 3], 3)
    assert own.logprobs == pytest.approx(LOGITS[1].log_softmax(-1)[[2, 3, 0, 3]].tolist())


def test_rows_of_a_wide_matrix_get_their_own_columns():
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    token_ids = torch.tensor([199, 0, 7])
    rows = row_logprobs(logits, token_ids, [200, 2, 0], [(), (), (5, 199)]).read()
    expected = logits.log_softmax(-1)
    for row, count, own in zip(rows, (200, 2, 2), range(3), strict=True):
        assert len(row.token_ids) == len(row.logprobs) == 1 + count
        assert row.logprobs == pytest.approx(expected[own][row.token_ids].tolist())
        assert all(type(each) is int for each in (*row.token_ids, row.rank))
        assert all(type(each) is float for each in row.logprobs)
    assert sorted(rows[0].token_ids[1:]) == list(range(200))
    assert rows[2].token_ids == [7, 5, 199]


def test_the_values_may_be_the_logits():
    (row,) = row_logprobs(LOGITS[:1], torch.tensor([2]), [4], as_logits=True).read()
    assert row.token_ids == [2, 1, 2, 0, 3]
    assert row.logprobs == [2.0, 3.0, 2.0, 0.0, -1.0]


def test_a_token_that_the_model_forbids_has_the_smallest_logprob():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    (row,) = row_logprobs(logits, torch.tensor([1]), [3]).read()
    assert row.logprobs[0] == row.logprobs[3] == MIN_LOGPROB
    assert row.rank == 3
