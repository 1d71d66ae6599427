"""`logit_bias`, `allowed_token_ids` and `bad_words`: the kit's rules, and those of transformers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor, SequenceBiasLogitsProcessor

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import History, random_logits, sampled_rows
from quire_samplers.penalties.token_control import AllowedTokenIds, BadWords, LogitBias
from quire_samplers.plugin import ALLOWED, BAD, BIAS

V = 50
CPU = torch.device("cpu")


class TestLogitBias(LogitsProcessorContract):
    step_class = LogitBias
    capabilities = BIAS
    active = ({"logit_bias": {3: -100.0, 49: 2.5, 0: 0.0}}, {"logit_bias": {7: 100.0}})
    vocab_size = V


class TestAllowedTokenIds(LogitsProcessorContract):
    step_class = AllowedTokenIds
    capabilities = ALLOWED
    active = ({"allowed_token_ids": [0, 31, 32, 49]}, {"allowed_token_ids": [7]})
    vocab_size = V


class TestBadWords(LogitsProcessorContract):
    step_class = BadWords
    capabilities = BAD
    active = ({"bad_words": [[5], [2, 9], [1, 2, 3, 4]]}, {"bad_words": [[1, 2, 2], [7, 1], [8]]})
    histories = (
        History((1, 2, 3, 1, 2), num_prompt_tokens=3),
        History((7,), num_prompt_tokens=1),
        History((4, 1, 2, 3), num_prompt_tokens=1),
    )
    vocab_size = V


ids = st.integers(0, 5)
words = st.lists(st.lists(ids, min_size=1, max_size=4), min_size=1, max_size=6)


@given(requests=st.lists(st.tuples(st.lists(ids, min_size=1, max_size=9), words), min_size=1))
@settings(deadline=None)
def test_bad_words_are_those_of_transformers(requests):
    logits = random_logits(len(requests), V, scale=3.0)
    rows = sampled_rows(
        BAD,
        [{"bad_words": bad} for _, bad in requests],
        histories=[History(token_ids, 1) for token_ids, _ in requests],
        stale_token=2,
    )
    found = BadWords(V, CPU).apply(logits.clone(), rows)
    for row, (token_ids, bad) in enumerate(requests):
        expected = NoBadWordsLogitsProcessor(bad)(
            torch.tensor([token_ids]), logits[row : row + 1].clone()
        )
        assert torch.equal(found[row], expected[0])


@given(bias=st.dictionaries(st.integers(0, V - 1), st.floats(-100, 100, width=32), min_size=1))
@settings(deadline=None)
def test_biases_are_those_of_transformers(bias):
    logits = random_logits(1, V, scale=3.0)
    rows = sampled_rows(BIAS, [{"logit_bias": bias}])
    expected = SequenceBiasLogitsProcessor({(token_id,): x for token_id, x in bias.items()})(
        torch.tensor([[1]]), logits.clone()
    )
    assert torch.equal(LogitBias(V, CPU).apply(logits.clone(), rows), expected)


@given(allowed=st.sets(st.integers(0, V - 1), min_size=1))
@settings(deadline=None)
def test_only_allowed_tokens_stay(allowed):
    rows = sampled_rows(ALLOWED, [{"allowed_token_ids": sorted(allowed)}], vocab_size=V)
    found = AllowedTokenIds(V, CPU).apply(torch.zeros(1, V), rows)
    assert set(found[0].isfinite().nonzero().flatten().tolist()) == allowed


def test_a_mask_that_permits_none_of_the_allowed_tokens_takes_precedence():
    logits = torch.full((2, V), -torch.inf)
    logits[:, 4] = logits[:, 5] = 1.0
    rows = sampled_rows(ALLOWED, [{"allowed_token_ids": [9]}, {"allowed_token_ids": [5, 9]}],
                        vocab_size=V)  # fmt: skip
    found = AllowedTokenIds(V, CPU).apply(logits.clone(), rows)
    assert torch.equal(found[0], logits[0])
    assert found[1].isfinite().nonzero().flatten().tolist() == [5]
    rows = sampled_rows(BAD, [{"bad_words": [[4], [5]]}, {"bad_words": [[4]]}])
    found = BadWords(V, CPU).apply(logits.clone(), rows)
    assert torch.equal(found[0], logits[0])
    assert found[1].isfinite().nonzero().flatten().tolist() == [5]


def test_a_logit_that_is_nan_stays_nan_so_that_its_row_fails():
    for step, capabilities, fields in (
        (AllowedTokenIds, ALLOWED, {"allowed_token_ids": [3]}),
        (BadWords, BAD, {"bad_words": [[4]]}),
    ):
        logits = torch.full((1, V), torch.nan)
        rows = sampled_rows(capabilities, [fields], vocab_size=V)
        assert step(V, CPU).apply(logits, rows).isnan().any()
