"""Each token of a prompt is looked at by the row before it, a few rows at a time."""

import pytest
import torch

from quire.messages import ScheduledRequest, SlotAssignment
from quire.worker.batch.slots import SlotTables
from quire.worker.sampling.prompt_logprobs import MAX_ROWS, compute_prompt_logprobs

VOCAB_SIZE = 50
HEAD = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))


class Logits:
    """A head that records the number of rows of each call."""

    def __init__(self):
        self.num_rows = []

    def __call__(self, hidden_states):
        self.num_rows.append(len(hidden_states))
        return hidden_states @ HEAD


def tables_of(*slots):
    """Tables with one slot for each (tokens, prompt tokens, computed, wanted)."""
    tables = SlotTables(len(slots), 512, [40], [], torch.device("cpu"))
    for slot, (token_ids, num_prompt_tokens, num_computed, wanted) in enumerate(slots):
        tables.assign(
            SlotAssignment(
                slot=slot,
                token_ids=token_ids,
                num_computed_tokens=num_computed,
                block_ids=[[]],
                num_prompt_tokens=num_prompt_tokens,
                fields={},
                seed=0,
                child=0,
                num_prompt_logprobs=wanted,
            )
        )
    tables.push()
    return tables


def tokens(count):
    return [(7 * i + 3) % VOCAB_SIZE for i in range(count)]


def hidden(count):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count))


def check(rows, states, targets, num_top):
    expected = (states @ HEAD).log_softmax(-1)
    assert len(rows) == len(targets)
    for row, target, found in zip(expected, targets, rows, strict=True):
        top = row.topk(num_top)
        assert found.token_ids == [target, *top.indices.tolist()]
        assert found.logprobs == pytest.approx([row[target].item(), *top.values.tolist()])
        assert found.rank == 1 + int((row > row[target]).sum())


def test_each_row_reports_the_next_token_and_the_last_row_of_a_prompt_does_not():
    ids = tokens(10)
    tables = tables_of((ids, 10, 0, 2))
    states = hidden(10)
    (found,) = compute_prompt_logprobs([ScheduledRequest(0, 10, 1)], states, tables, Logits())
    assert found.slot == 0
    check(found.read(), states[:9], ids[1:], 2)


def test_chunks_of_several_requests_each_report_their_part():
    ids = tokens(30)
    tables = tables_of((ids, 30, 0, None), (ids[:12], 12, 8, 1), (ids, 30, 10, 0))
    requests = [ScheduledRequest(0, 5, 0), ScheduledRequest(1, 4, 1), ScheduledRequest(2, 6, 0)]
    states = hidden(15)
    second, third = compute_prompt_logprobs(requests, states, tables, Logits())
    assert (second.slot, third.slot) == (1, 2)
    check(second.read(), states[5:8], ids[9:12], 1)
    check(third.read(), states[9:15], ids[11:17], 0)


@pytest.mark.parametrize(("num_computed", "num_tokens"), [(9, 1), (12, 1), (9, 4)])
def test_a_recomputed_completion_is_no_prompt(num_computed, num_tokens):
    tables = tables_of((tokens(14), 10, num_computed, 3))
    request = ScheduledRequest(0, num_tokens, 0)
    logits = Logits()
    assert compute_prompt_logprobs([request], hidden(num_tokens), tables, logits) == []
    assert logits.num_rows == []


def test_a_chunk_that_goes_past_the_prompt_reports_the_prompt_alone():
    ids = tokens(14)
    states = hidden(10)
    request = ScheduledRequest(0, 10, 1)
    (found,) = compute_prompt_logprobs([request], states, tables_of((ids, 10, 4, 1)), Logits())
    check(found.read(), states[:5], ids[5:10], 1)


def test_logits_of_a_long_chunk_are_never_there_at_once():
    ids = tokens(300)
    states, logits = hidden(300), Logits()
    request = ScheduledRequest(0, 300, 1)
    (found,) = compute_prompt_logprobs([request], states, tables_of((ids, 300, 0, 2)), logits)
    assert sum(logits.num_rows) == 299
    assert max(logits.num_rows) == MAX_ROWS
    check(found.read(), states[:299], ids[1:], 2)


@pytest.mark.parametrize(("num_computed", "num_tokens"), [(8, 1), (8, 3), (3, 1)])
def test_a_chunk_that_predicts_one_token_reports_it(num_computed, num_tokens):
    ids = tokens(10)
    states = hidden(num_tokens)
    request = ScheduledRequest(0, num_tokens, 0)
    tables = tables_of((ids, 10, num_computed, 2))
    (found,) = compute_prompt_logprobs([request], states, tables, Logits())
    check(found.read(), states[:1], ids[num_computed + 1 : num_computed + 2], 2)
