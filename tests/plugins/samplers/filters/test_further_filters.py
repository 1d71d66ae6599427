"""Filters and temperatures beyond the usual, against transformers or their plain definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EpsilonLogitsWarper, EtaLogitsWarper, TypicalLogitsWarper

from quire.testing.sampling import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers import plugin
from quire_samplers.filters.cutoffs import EpsilonCutoff, EtaCutoff, TopA
from quire_samplers.filters.top_n_sigma import TopNSigma
from quire_samplers.filters.typical_p import TypicalP
from quire_samplers.filters.xtc import XTC
from quire_samplers.temperatures.dynamic_temperature import DynamicTemperature
from quire_samplers.temperatures.quadratic_smoothing import QuadraticSmoothing


def of(name):
    _, capabilities = plugin.STEPS[name]
    return capabilities


class TestTypicalP(LogitsProcessorContract):
    step_class = TypicalP
    capabilities = of("typical_p")
    active = ({"typical_p": 0.2}, {"typical_p": 0.9}, {"typical_p": 0.0})


class TestEpsilonCutoff(LogitsProcessorContract):
    step_class = EpsilonCutoff
    capabilities = of("epsilon_cutoff")
    active = ({"epsilon_cutoff": 0.02}, {"epsilon_cutoff": 1.0})


class TestEtaCutoff(LogitsProcessorContract):
    step_class = EtaCutoff
    capabilities = of("eta_cutoff")
    active = ({"eta_cutoff": 0.05}, {"eta_cutoff": 1.0})


class TestTopA(LogitsProcessorContract):
    step_class = TopA
    capabilities = of("top_a")
    active = ({"top_a": 0.3}, {"top_a": 1.0})


class TestTopNSigma(LogitsProcessorContract):
    step_class = TopNSigma
    capabilities = of("top_n_sigma")
    active = ({"top_n_sigma": 1.0}, {"top_n_sigma": 0.1})


class TestXTC(LogitsProcessorContract):
    step_class = XTC
    capabilities = of("xtc")
    active = (
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"xtc_probability": 0.9, "xtc_threshold": 0.02},
    )


class TestQuadraticSmoothing(LogitsProcessorContract):
    step_class = QuadraticSmoothing
    capabilities = of("quadratic_smoothing")
    active = ({"smoothing_factor": 0.3}, {"smoothing_factor": 2.0, "smoothing_curve": 2.5})


class TestDynamicTemperature(LogitsProcessorContract):
    step_class = DynamicTemperature
    capabilities = of("dynamic_temperature")
    active = (
        {"dynatemp_low": 0.5, "dynatemp_high": 2.0},
        {"dynatemp_high": 1.5, "dynatemp_exponent": 3.0},
    )


def apply(step_class, name, logits, fields, **given_rows):
    rows = sampled_rows(of(name), [fields] * len(logits), **given_rows)
    return step_class(logits.shape[1], logits.device).apply(logits.clone(), rows)


LOGITS = torch.randn(40, 200, generator=torch.Generator().manual_seed(3)) * 3


@pytest.mark.parametrize("value", [0.1, 0.5, 0.95])
def test_typical_p_equals_transformers(value):
    found = apply(TypicalP, "typical_p", LOGITS, {"typical_p": value})
    assert torch.equal(found, TypicalLogitsWarper(value)(None, LOGITS.clone()))


@pytest.mark.parametrize("value", [3e-4, 0.01, 0.3])
def test_epsilon_and_eta_equal_transformers(value):
    found = apply(EpsilonCutoff, "epsilon_cutoff", LOGITS, {"epsilon_cutoff": value})
    assert torch.equal(found, EpsilonLogitsWarper(value)(None, LOGITS.clone()))
    found = apply(EtaCutoff, "eta_cutoff", LOGITS, {"eta_cutoff": value})
    assert torch.equal(found, EtaLogitsWarper(value)(None, LOGITS.clone()))


ROWS = st.lists(st.floats(-15, 15, width=32), min_size=2, max_size=30)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.floats(0.01, 1.0))
def test_top_a_keeps_a_share_of_the_largest_square(values, share):
    logits = torch.tensor([values])
    probs = logits.double().softmax(-1)[0]
    kept = apply(TopA, "top_a", logits, {"top_a": share}).isfinite()[0]
    for is_kept, prob in zip(kept.tolist(), probs.tolist(), strict=True):
        lowest = share * float(probs.max()) ** 2
        if abs(prob - lowest) > 1e-6:
            assert is_kept == (prob > lowest or prob == float(probs.max()))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.floats(0.1, 3.0), st.floats(0.3, 3.0))
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(values, n, temperature):
    logits = torch.tensor([[*values, -math.inf]])
    finite = torch.tensor(values).double()
    lowest = float(finite.max() - n * finite.std(correction=0))
    for scale in (1.0, temperature):
        kept = apply(TopNSigma, "top_n_sigma", logits / scale, {"top_n_sigma": n}).isfinite()[0]
        assert not kept[-1]
        for is_kept, value in zip(kept.tolist(), values, strict=False):
            if abs(value - lowest) > 1e-3:
                assert is_kept == (value > lowest)


def test_xtc_leaves_the_least_likely_of_the_top_choices():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(2000, 1)
    fields = {"xtc_probability": 0.25, "xtc_threshold": 0.15}
    kept = apply(XTC, "xtc", logits, fields, seeds=range(2000)).isfinite()
    is_cut = kept.sum(-1) < 4
    assert kept[is_cut].tolist() == [[False, False, True, True]] * int(is_cut.sum())
    assert 0.21 < is_cut.float().mean() < 0.29, "drawn for each row"
    alone = apply(XTC, "xtc", logits[:50], {"xtc_probability": 1.0, "xtc_threshold": 0.35})
    assert alone.isfinite().all(), "one top choice is no choice"


def test_quadratic_smoothing_is_its_formula():
    logits = torch.tensor([[2.0, 1.0, -1.0, -math.inf]])
    fields = {"smoothing_factor": 0.5, "smoothing_curve": 2.0}
    found = apply(QuadraticSmoothing, "quadratic_smoothing", logits, fields)
    bent = [0.5 * (d**2 / 2 + d**3 / 2) for d in (0.0, 1.0, 3.0)]
    assert found[0, :3].tolist() == pytest.approx([2.0 - each for each in bent])
    assert found[0, 3] == -math.inf


def test_dynamic_temperature_follows_the_entropy():
    logits = torch.tensor([[50.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [3.0, 1.0, 0.0, -math.inf]])
    fields = {"dynatemp_low": 0.5, "dynatemp_high": 2.0, "dynatemp_exponent": 2.0}
    found = apply(DynamicTemperature, "dynamic_temperature", logits, fields)
    assert found[0, 0] == pytest.approx(100.0), "certain: the low temperature"
    assert found[1].tolist() == pytest.approx([0.5] * 4), "uncertain: the high one"
    probs = torch.tensor([3.0, 1.0, 0.0]).double().softmax(-1)
    share = float(-(probs * probs.log()).sum()) / math.log(3)
    assert found[2, 0] == pytest.approx(3.0 / (0.5 + 1.5 * share**2), rel=1e-5)
