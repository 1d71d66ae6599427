"""Mirostat against its definition in plain Python, and the surprise that it aims at."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.testing.sampling import StatefulLogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.filters.mirostat import Mirostat, num_kept, zipf_exponent
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.plugin import MIROSTAT, TEMPERATURE

CPU = torch.device("cpu")
FIELDS = MIROSTAT.fields


class TestMirostat(StatefulLogitsProcessorContract):
    step_class = Mirostat
    capabilities = MIROSTAT
    active = (
        {"mirostat_mode": 2, "mirostat_tau": 2.0},
        {"mirostat_mode": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.5},
    )
    states = ({"mirostat_mu": 1.5}, {"mirostat_mu": 4.0}, {"mirostat_mu": -1.0})


def softmax(logits):
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


class Reference:
    """One request: what is kept at each position, and mu after each token."""

    def __init__(self, mode, tau, eta):
        self.mode, self.tau, self.eta, self.mu = mode, tau, eta, 2 * tau

    def kept(self, logits):
        probs = softmax(logits)
        order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
        if self.mode == 2:
            return [order[0]] + [t for t in order[1:] if -math.log2(probs[t] or 1e-300) <= self.mu]
        return order[: self.k([probs[token] for token in order])]

    def k(self, probs):
        pairs = range(min(100, len(probs)) - 1)
        widths = [math.log((i + 2) / (i + 1)) for i in pairs]
        steps = [math.log(probs[i] / probs[i + 1]) for i in pairs]
        s = sum(a * b for a, b in zip(widths, steps, strict=True)) / sum(a * a for a in widths)
        epsilon = s - 1
        k = (epsilon * 2**self.mu / (1 - len(probs) ** -epsilon)) ** (1 / s)
        return max(1, min(int(k), len(probs)))

    def surprise(self, logits, token):
        kept = self.kept(logits)
        probs = softmax([logits[each] for each in kept])
        return -math.log2(probs[kept.index(token)])

    def observe(self, logits, token):
        self.mu -= self.eta * (self.surprise(logits, token) - self.tau)


def rows_of(requests, mus, position, seeds=None):
    caps = type(MIROSTAT)(stage="filter", fields=(*FIELDS, TEMPERATURE), states=MIROSTAT.states)
    states = [{"mirostat_mu": mu} for mu in mus]
    return sampled_rows(
        caps, requests, states=states, positions=[position] * len(requests), seeds=seeds
    )


def completion(requests, logits_at, num_tokens):
    """Tokens and surprises of some requests in one batch, and the mu of each at the end."""
    step, sampler = None, None
    mus = [2 * request["mirostat_tau"] for request in requests]
    tokens, surprises = [], []
    for position in range(1, num_tokens + 1):
        logits = logits_at(position)
        step = step or Mirostat(logits.shape[1], CPU)
        sampler = sampler or TorchGumbel(logits.shape[1], CPU)
        rows = rows_of(requests, mus, position)
        filtered = step.apply(logits.clone(), rows)
        token_ids = sampler.sample(filtered, rows)
        tokens.append(token_ids)
        probs = filtered.softmax(-1).gather(1, token_ids[:, None])
        surprises.append(-probs.log2().squeeze(1))
        mus = step.observe(filtered, rows, token_ids).squeeze(1).tolist()
    return torch.stack(tokens, 1), torch.stack(surprises, 1), mus


@pytest.mark.parametrize("mode", [1, 2])
def test_a_whole_completion_is_that_of_the_definition(mode):
    """The tokens that may be sampled and mu, at each position, of requests of one batch."""
    random = torch.Generator().manual_seed(4)
    table = torch.randn(61, 5, 90, generator=random) * 3
    targets = [(3.0, 0.1), (1.0, 1.0), (5.0, 0.3), (0.5, 0.05), (8.0, 0.1)]
    requests = [
        {"mirostat_mode": mode, "mirostat_tau": tau, "mirostat_eta": eta} for tau, eta in targets
    ]
    references = [Reference(mode, *target) for target in targets]
    step, sampler = Mirostat(90, CPU), TorchGumbel(90, CPU)
    mus = [reference.mu for reference in references]
    for position in range(1, 61):
        logits = table[position]
        rows = rows_of(requests, mus, position)
        filtered = step.apply(logits.clone(), rows)
        for row, reference in enumerate(references):
            kept = filtered[row].isfinite().nonzero().flatten().tolist()
            assert kept == sorted(reference.kept(logits[row].tolist()))
        token_ids = sampler.sample(filtered, rows)
        mus = step.observe(filtered, rows, token_ids).squeeze(1).tolist()
        for row, reference in enumerate(references):
            reference.observe(logits[row].tolist(), int(token_ids[row]))
        assert mus == pytest.approx([reference.mu for reference in references], abs=2e-4)
        mus = [reference.mu for reference in references]  # rounding does not add up


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize(("scale", "tau"), [(0.5, 3.0), (0.5, 6.0), (2.5, 1.0), (2.5, 3.0)])
def test_the_mean_surprise_comes_near_the_target(mode, tau, scale):
    """120 tokens of each of 20 requests; without mirostat it is 8 bits, and 4.6 if peaked."""
    random = torch.Generator().manual_seed(1)
    table = torch.randn(300, 20, 300, generator=random) * scale
    request = {"mirostat_mode": mode, "mirostat_tau": tau, "mirostat_eta": 0.3}
    _, surprises, _ = completion([request] * 20, lambda position: table[position], 120)
    assert surprises.mean().item() == pytest.approx(tau, abs=0.15)


@pytest.mark.parametrize("mode", [1, 2])
def test_equally_likely_tokens_reach_the_target_too(mode):
    """Only all tokens or one can be kept: mu goes up and down, and the mean is right."""
    request = {"mirostat_mode": mode, "mirostat_tau": 3.0, "mirostat_eta": 0.5}
    _, surprises, _ = completion([request] * 4, lambda _: torch.zeros(4, 64), 200)
    found = set(surprises.abs().unique().tolist())
    assert found <= {0.0, 6.0} or mode == 1
    assert surprises.mean().item() == pytest.approx(3.0, abs=0.2)


logit_rows = st.lists(
    st.one_of(st.floats(-60, 60, width=32), st.just(-math.inf)), min_size=8, max_size=8
).filter(lambda row: max(row) > -math.inf)


@given(
    logit_rows,
    st.floats(-(2.0**90), 2.0**90, width=32),
    st.integers(1, 2),
    st.floats(0, 100, width=32),
    st.floats(0, 10, width=32),
)
@settings(deadline=None)
def test_any_state_leaves_the_most_likely_token_and_a_finite_state(row, mu, mode, tau, eta):
    request = {"mirostat_mode": mode, "mirostat_tau": tau, "mirostat_eta": eta}
    logits, rows = torch.tensor([row]), rows_of([request], [mu], 1)
    step = Mirostat(8, CPU)
    filtered = step.apply(logits.clone(), rows)
    assert filtered[0, logits.argmax()] == logits.max()
    is_kept = filtered.isfinite()
    assert torch.equal(filtered[is_kept], logits[is_kept])
    assert step.observe(filtered, rows, filtered.argmax(-1)).isfinite().all()


@pytest.mark.parametrize("masked", [0, 5, 8])
def test_masked_tokens_do_not_count_for_the_law(masked):
    """The exponent is fitted to the tokens that are left."""
    logits = torch.full((1, 10), -math.inf)
    first = masked and 10 - masked
    logits[0, : first or 10] = -torch.arange(1, (first or 10) + 1).log() * 1.5
    assert zipf_exponent(logits.log_softmax(-1)).item() == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (1.5, (0.5 * 64 / (1 - 500**-0.5)) ** (1 / 1.5)),
        (0.5, (-0.5 * 64 / (1 - 500**0.5)) ** 2),
        (1.0, 64 / math.log(500)),  # the limit
        (1.0 + 1e-9, 64 / math.log(500)),
        (0.0, 1),  # all tokens are equally likely, and 64 are fewer than all
        (-2.0, 1),
    ],
)
def test_the_number_of_kept_tokens_is_that_of_zipf_s_law(exponent, expected):
    exponents = torch.tensor([[exponent]], dtype=torch.float64)
    found = num_kept(exponents, torch.tensor([[6.0]]), 500).item()
    assert found == max(1, int(expected))
    assert num_kept(exponents, torch.tensor([[7.0]]), 500).item() >= found


def test_equally_likely_tokens_are_all_kept_once_mu_allows_it():
    flat = torch.zeros(1, 1, dtype=torch.float64)
    assert num_kept(flat, torch.tensor([[9.1]]), 500).item() == math.inf
    assert num_kept(flat, torch.tensor([[8.9]]), 500).item() == 1


def test_off_is_neutral_and_a_request_starts_at_twice_the_target():
    step = Mirostat(8, CPU)
    assert step.is_neutral({"mirostat_mode": 0})
    assert not step.is_neutral({"mirostat_mode": 1})
    assert step.initial_state({"mirostat_tau": 4.5}) == [9.0]
