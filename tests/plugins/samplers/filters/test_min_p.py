"""Min-p keeps tokens by their ratio to the largest probability."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.filters.min_p import MinP
from quire_samplers.plugin import MIN_P

CAPABILITIES = SamplerCapabilities(stage="filter", fields=(MIN_P,))


class TestMinP(LogitsProcessorContract):
    step_class = MinP
    capabilities = CAPABILITIES
    active = ({"min_p": 0.05}, {"min_p": 0.6}, {"min_p": 1.0})


def apply(logits, min_p):
    rows = sampled_rows(CAPABILITIES, [{"min_p": min_p}] * len(logits))
    return MinP(logits.shape[1], logits.device).apply(logits.clone(), rows)


@pytest.mark.parametrize("min_p", [0.01, 0.1, 0.5, 0.9])
def test_it_equals_transformers(min_p):
    logits = torch.randn(5, 200) * 3
    assert torch.equal(apply(logits, min_p), MinPLogitsWarper(min_p)(None, logits.clone()))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30), st.floats(0.001, 1.0))
def test_what_stays_has_the_share_and_what_goes_has_not(values, min_p):
    logits = torch.tensor([values])
    probs = logits.double().softmax(-1)[0]
    share = (probs / probs.max()).tolist()
    for kept, ratio in zip(apply(logits, min_p).isfinite()[0].tolist(), share, strict=True):
        if abs(ratio - min_p) > 1e-5:
            assert kept == (ratio > min_p)


@pytest.mark.parametrize(("min_p", "is_neutral"), [(0.0, True), (0.001, False), (1.0, False)])
def test_a_step_is_needed_where_some_token_may_go(min_p, is_neutral):
    assert MinP(3, torch.device("cpu")).is_neutral({"min_p": min_p}) is is_neutral


def test_each_row_has_its_own_most_likely_token():
    logits = torch.tensor([[9.0, 8.0, 0.0], [0.0, -1.0, -9.0]])
    assert apply(logits, 0.1).isfinite().tolist() == [[True, True, False]] * 2
