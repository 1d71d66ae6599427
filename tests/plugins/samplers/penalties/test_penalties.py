"""Penalties: the kit's rules, and equality with transformers and a plain count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import History, random_logits, sampled_rows, shard_of
from quire_samplers.penalties import penalties
from quire_samplers.penalties.penalties import RepetitionPenalty, SampledTokenPenalties
from quire_samplers.plugin import PENALTIES, SAMPLED_PENALTIES

V = 50
CPU = torch.device("cpu")
HISTORIES = (
    History((1, 2, 3, 1, 2, 2), num_prompt_tokens=3),
    History((7, 7), num_prompt_tokens=1),
    History((40, 49, 0, 49, 49, 3, 3, 3, 8), num_prompt_tokens=2),
)


class TestRepetitionPenalty(LogitsProcessorContract):
    step_class = RepetitionPenalty
    capabilities = PENALTIES
    active = ({"repetition_penalty": 1.3}, {"repetition_penalty": 0.5})
    histories = HISTORIES
    vocab_size = V


class TestSampledTokenPenalties(LogitsProcessorContract):
    step_class = SampledTokenPenalties
    capabilities = SAMPLED_PENALTIES
    active = (
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.7},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    )
    histories = HISTORIES
    vocab_size = V


histories = st.lists(st.integers(0, V - 1), min_size=1, max_size=30)


@pytest.mark.parametrize("chunk", [3, 8192])
@given(
    requests=st.lists(st.tuples(histories, st.floats(2**-9, 1e3, width=32)), min_size=1, max_size=4)
)
@settings(deadline=None)
def test_repetition_penalties_are_those_of_transformers(chunk, requests):
    logits = random_logits(len(requests), V, scale=3.0)
    rows = sampled_rows(
        PENALTIES,
        [{"repetition_penalty": penalty} for _, penalty in requests],
        histories=[History(token_ids, 1) for token_ids, _ in requests],
        stale_token=9,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalties, "CHUNK", chunk)
        found = RepetitionPenalty(V, CPU).apply(logits.clone(), rows)
    for row, (token_ids, penalty) in enumerate(requests):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([token_ids]), logits[row : row + 1]
        )
        assert torch.equal(found[row], expected[0])


@pytest.mark.parametrize("chunk", [3, 8192])
@given(
    token_ids=histories,
    num_prompt=st.integers(1, 30),
    presence=st.floats(-2, 2, width=32),
    frequency=st.floats(-2, 2, width=32),
)
@settings(deadline=None)
def test_sampled_tokens_are_counted_and_those_of_the_prompt_are_not(
    chunk, token_ids, num_prompt, presence, frequency
):
    num_prompt = min(num_prompt, len(token_ids))
    logits = random_logits(1, V, scale=3.0)
    fields = {"presence_penalty": presence, "frequency_penalty": frequency}
    rows = sampled_rows(
        SAMPLED_PENALTIES, [fields], histories=[History(token_ids, num_prompt)], vocab_size=V
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalties, "CHUNK", chunk)
        found = SampledTokenPenalties(V, CPU).apply(logits.clone(), rows)
    counts = torch.bincount(torch.tensor(token_ids[num_prompt:]).long(), minlength=V)
    expected = logits - frequency * counts - presence * (counts > 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert torch.equal(found[0, counts == 0], logits[0, counts == 0])


@pytest.mark.parametrize("token_ids", [range(20), range(20, 50)])
def test_a_short_row_beside_a_long_one_keeps_its_penalties_in_all_chunks(token_ids, monkeypatch):
    monkeypatch.setattr(penalties, "CHUNK", 2)
    logits = random_logits(2, V, scale=3.0)
    own = [History((0, 21), 1), History(tuple(range(12)), 1)]
    rows = sampled_rows(PENALTIES, [{"repetition_penalty": 2.0}] * 2, histories=own)
    whole = RepetitionPenalty(V, CPU).apply(logits.clone(), rows)
    assert (whole[0] != logits[0]).nonzero().flatten().tolist() == [0, 21]
    found = RepetitionPenalty(V, CPU).apply(*shard_of(logits, rows, token_ids))
    assert torch.equal(found, whole[:, token_ids.start : token_ids.stop])


def test_draft_rows_of_a_slot_count_the_tokens_before_their_own_positions():
    history = History((5, 6, 6, 6, 6), num_prompt_tokens=2)
    rows = sampled_rows(
        SAMPLED_PENALTIES, [{"frequency_penalty": 1.0}] * 3, histories=[history] * 3,
        positions=[3, 4, 5], slots=[4, 4, 4], vocab_size=V,
    )  # fmt: skip
    logits = torch.zeros(3, V)
    found = SampledTokenPenalties(V, CPU).apply(logits, rows)
    assert found[:, 6].tolist() == [-1.0, -2.0, -3.0]
    assert found[:, 5].tolist() == [0.0, 0.0, 0.0]
