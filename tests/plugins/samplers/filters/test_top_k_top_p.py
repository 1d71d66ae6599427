"""Top-k, then top-p, with one sort."""

from types import MappingProxyType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.filters.top_k_top_p import TopKTopP, _total
from quire_samplers.plugin import TOP_K, TOP_P

CAPABILITIES = SamplerCapabilities(stage="filter", fields=(TOP_K, TOP_P))


class TestOnlySmallTopK(LogitsProcessorContract):
    step_class = TopKTopP
    capabilities = CAPABILITIES
    active = ({"top_k": 5}, {"top_k": 1}, {"top_k": 20, "top_p": 0.8})


class TestTopPWithoutTopK(LogitsProcessorContract):
    step_class = TopKTopP
    capabilities = CAPABILITIES
    active = ({"top_p": 0.5}, {"top_p": 0.01}, {"top_k": 30, "top_p": 0.9}, {"top_k": 49})


class TestOffByMinusOne(LogitsProcessorContract):
    step_class = TopKTopP
    capabilities = CAPABILITIES
    active = ({"top_k": -1, "top_p": 0.6},)
    neutral = MappingProxyType({"top_k": -1})


def apply(logits, top_k, top_p):
    rows = sampled_rows(CAPABILITIES, [{"top_k": top_k, "top_p": top_p}] * len(logits))
    return TopKTopP(logits.shape[1], logits.device).apply(logits.clone(), rows)


def kept_by_definition(values, top_k, top_p):
    """Token ids that stay, written down as slowly as possible."""
    ranking = sorted(values, reverse=True)
    ranking = ranking[:top_k] if top_k > 0 else ranking
    probs = torch.tensor(ranking).double().softmax(0).tolist()
    num_kept = next(
        n for n in range(1, len(ranking) + 1) if n == len(ranking) or sum(probs[:n]) >= top_p
    )
    return {token for token, value in enumerate(values) if value >= ranking[num_kept - 1]}


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 150, 300])
def test_it_equals_transformers(top_k, top_p):
    logits = torch.randn(6, 300) * 3
    warpers = LogitsProcessorList()
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    warpers.append(TopPLogitsWarper(top_p))
    assert torch.equal(apply(logits, top_k, top_p), warpers(None, logits.clone()))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([-9.0, -1.5, -1.0, 0.0, 0.25, 2.0, 6.0]), min_size=1, max_size=30),
    st.integers(-1, 35),
    st.floats(0.01, 0.999),
)
def test_what_stays_is_what_the_definition_says(values, top_k, top_p):
    found = set(apply(torch.tensor([values]), top_k, top_p)[0].isfinite().nonzero()[:, 0].tolist())
    edges = (top_p - 1e-5, top_p, top_p + 1e-5)  # float32 may fall to either side of a sum
    assert found in [kept_by_definition(values, top_k, edge) for edge in edges]


def test_equal_tokens_stay_together():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert apply(logits, 2, 1.0).isfinite().tolist() == [[False, True, True, True, False]]


def test_the_most_likely_token_is_always_kept():
    logits = torch.tensor([[0.0, 5.0, 1.0]])
    assert apply(logits, 0, 1e-30).isfinite().tolist() == [[False, True, False]]


@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("top_k", [0, 500, 512, 600, 1999, 2000])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 1.0])
def test_ranking_a_part_of_a_large_vocabulary_is_enough_or_noticed(spread, top_k, top_p):
    logits = torch.randn(5, 2000, generator=torch.Generator().manual_seed(1)) * spread
    warpers = LogitsProcessorList()
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(None, logits.clone()).isfinite().sum(1)
    found = apply(logits, top_k, top_p).isfinite().sum(1)
    assert (found - expected).abs().max() <= 1  # a float32 sum may end one token to either side


def test_rows_with_different_limits_do_not_disturb_each_other():
    logits = torch.randn(3, 2000, generator=torch.Generator().manual_seed(2))
    fields = [{"top_k": 700, "top_p": 1.0}, {"top_k": 0, "top_p": 0.3}, {"top_k": 5, "top_p": 0.9}]
    together = TopKTopP(2000, logits.device).apply(
        logits.clone(), sampled_rows(CAPABILITIES, fields)
    )
    for row, each in enumerate(fields):
        alone = apply(logits[row : row + 1], each["top_k"], each["top_p"])
        assert torch.equal(together[row : row + 1], alone)


@pytest.mark.parametrize("top_k", [1, 5, 200, 512, 700, 40_000])
def test_the_weight_that_is_shared_out_has_the_same_bits_in_every_batch(top_k):
    logits = torch.randn(4, 40_000, generator=torch.Generator().manual_seed(3)) * 4
    limit = torch.full((4, 1), top_k)
    ranked = logits.sort(dim=-1, descending=True).values
    whole = _total(ranked, limit, logits, 40_000)
    for count in (n for n in (1, 5, 7, 200, 512, 513, 700, 39_999) if n >= top_k):
        assert torch.equal(_total(ranked[:, :count], limit, logits, 40_000), whole)
    for row in range(4):
        one = slice(row, row + 1)
        assert torch.equal(_total(ranked[one], limit[one], logits[one], 40_000), whole[one])


@pytest.mark.parametrize(
    ("top_k", "top_p", "is_neutral"),
    [
        (0, 1.0, True), (-1, 1.0, True), (10, 1.0, True), (11, 1.0, True), (9, 1.0, False),
        (1, 1.0, False), (0, 0.999, False), (0, 0.0, False), (9, 0.5, False),
    ],
)  # fmt: skip
def test_a_step_is_needed_where_some_token_may_go(top_k, top_p, is_neutral):
    step = TopKTopP(10, torch.device("cpu"))
    assert step.is_neutral({"top_k": top_k, "top_p": top_p}) is is_neutral
