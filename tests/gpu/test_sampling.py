"""The sampler steps on a GPU: the kits, and samples from vocabularies of real models.

The kits show the rules on 50 tokens; tests/plugins/samplers/gumbel/test_gumbel.py, compiled by
`make test-gpu` as well, shows them on any number. Here one row and 256 are sampled from 32,000 and
151,936 tokens, with filters and without. The noise is computed again in plain torch, and filters in
float64: the sampled token has the largest sum of logit and noise among the tokens that stay, unless
rounding decides.
"""

import math
from types import MappingProxyType

import pytest
import torch
from gpu_tests import DEVICE, ON_CPU
from gumbel_reference import noise_of, row_keys, token_words

from quire.config import PluginSettings
from quire.interfaces.sampling import SamplerCapabilities
from quire.plugins.loading import load_plugins
from quire.testing.sampling.logits_contract import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire.testing.sampling.sampler_contract import SamplerContract
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.torch_gumbel import TorchGumbel
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P
from quire_samplers.temperatures.temperature import Temperature

SAMPLERS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.samplers
FIELDS = SamplerCapabilities(stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P))
PLAIN = ({"temperature": 1.0}, {"temperature": 0.0})
FILTERED = (
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.6},
    {"temperature": 0.0, "top_k": 3},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"min_p": 0.1},
    {"temperature": 1.5, "min_p": 0.02, "top_p": 0.9, "top_k": 40},
    {"top_p": 0.98},
    {"temperature": 1.2, "top_k": 5000, "top_p": 0.99},
)
EDGE = 1e-4  # of a probability; so near it a sum in float32 may fall to either side
CLOSE = 1e-4  # of a logit with its noise


class TestTemperature(LogitsProcessorContract):
    step_class = Temperature
    capabilities = SAMPLERS.entry("temperature").capabilities
    device = DEVICE
    active = ({"temperature": 0.3}, {"temperature": 1.7}, {"temperature": 1e-9})


class TestMinP(LogitsProcessorContract):
    step_class = MinP
    capabilities = SAMPLERS.entry("min_p").capabilities
    device = DEVICE
    active = ({"min_p": 0.05}, {"min_p": 0.6}, {"min_p": 1.0})


class TestTopKTopP(LogitsProcessorContract):
    step_class = TopKTopP
    capabilities = SAMPLERS.entry("top_k_top_p").capabilities
    device = DEVICE
    active = ({"top_p": 0.5}, {"top_k": 5}, {"top_k": 30, "top_p": 0.9}, {"top_k": 49})


class TestTorchGumbel(SamplerContract):
    step_class = TorchGumbel
    capabilities = SAMPLERS.entry("torch_gumbel").capabilities
    device = DEVICE
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = MappingProxyType({"temperature": 0.0})


def rows_of(kinds, num_rows):
    fields = [kinds[row % len(kinds)] for row in range(num_rows)]
    seeds, positions = [row * 7919 for row in range(num_rows)], range(1, num_rows + 1)
    rows = sampled_rows(FIELDS, fields, seeds=seeds, positions=positions, device=DEVICE)
    return fields, rows


def random_logits(num_rows, vocab_size):
    random = torch.Generator().manual_seed(vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=random) * 2).to(DEVICE)


def least_that_stays(row, fields, side):
    """The smallest scaled logit that filters keep; `side` widens (1) or narrows (-1) each edge."""
    ranked = row.sort(descending=True).values  # [V] float64
    if fields.get("min_p"):
        least = ranked[0] + math.log(fields["min_p"]) - side * EDGE
        ranked = ranked[: max(1, int((ranked >= least).sum()))]
    if fields.get("top_k"):
        ranked = ranked[: fields["top_k"]]
    if fields.get("top_p", 1.0) < 1.0:
        sums = ranked.softmax(0).cumsum(0)
        ranked = ranked[: int((sums < fields["top_p"] + side * EDGE).sum()) + 1]
    return min(ranked[-1] - side * 1e-5, ranked[0])


def assert_sampled_correctly(logits, rows, fields, sampled):
    """Each token is the best of those that stay, but for what rounding decides."""
    noise = noise_of(token_words(row_keys(rows), logits.shape[1])).double()
    for row, each in enumerate(fields):
        temperature = each.get("temperature", 1.0)
        scaled = logits[row].double() / (temperature or 1.0)
        sums = scaled + noise[row] * (temperature > 0)
        assert scaled[sampled[row]] >= least_that_stays(scaled, each, 1), (row, each)
        surely = sums[scaled >= least_that_stays(scaled, each, -1)]
        assert sums[sampled[row]] >= surely.max() - CLOSE, (row, each)


@pytest.mark.parametrize("vocab_size", [32_000, 151_936])
@pytest.mark.parametrize("kind", [*PLAIN, *FILTERED], ids=str)
def test_one_row_of_a_real_vocabulary_is_sampled_correctly(kind, vocab_size):
    fields, rows = rows_of([kind], 1)
    logits = random_logits(1, vocab_size)
    sampled = Gumbel(vocab_size, torch.device(DEVICE)).sample_fused(logits, rows)
    assert_sampled_correctly(logits, rows, fields, sampled)


@pytest.mark.skipif(ON_CPU, reason="the interpreter would take an hour")
@pytest.mark.parametrize("vocab_size", [32_000, 151_936])
@pytest.mark.parametrize("kinds", [PLAIN, (*PLAIN, *FILTERED)], ids=["plain", "filtered"])
def test_many_rows_of_a_real_vocabulary_are_sampled_correctly(kinds, vocab_size):
    fields, rows = rows_of(kinds, 256)
    logits = random_logits(256, vocab_size)
    sampled = Gumbel(vocab_size, torch.device(DEVICE)).sample_fused(logits, rows)
    assert_sampled_correctly(logits, rows, fields, sampled)


@pytest.mark.skipif(ON_CPU, reason="the interpreter would take an hour")
@pytest.mark.parametrize("vocab_size", [32_000, 151_936])
@pytest.mark.parametrize("num_rows", [1, 256])
def test_without_filters_the_sampled_token_is_that_of_the_noise(num_rows, vocab_size):
    fields, rows = rows_of([{"temperature": 1.0}, {"temperature": 0.0}], num_rows)
    logits = random_logits(num_rows, vocab_size)
    sampled = Gumbel(vocab_size, torch.device(DEVICE)).sample(logits, rows)
    assert_sampled_correctly(logits, rows, fields, sampled)
    greedy = [row for row in range(num_rows) if not fields[row]["temperature"]]
    assert torch.equal(sampled[greedy], logits[greedy].argmax(-1))


@pytest.mark.skipif(ON_CPU, reason="the interpreter would take an hour")
def test_samples_from_a_real_vocabulary_follow_the_probabilities():
    """Twelve likely tokens far apart in a vocabulary of the others; once in a thousand beyond."""
    vocab_size, num_samples = 151_936, 4096
    likely = torch.linspace(0, vocab_size - 1, 12).long().to(DEVICE)
    row = torch.full((vocab_size,), -30.0, device=DEVICE)
    row[likely] = torch.linspace(0.0, 1.5, 12, device=DEVICE)
    rows = sampled_rows(FIELDS, [{}] * num_samples, seeds=range(num_samples), device=DEVICE)
    step = Gumbel(vocab_size, torch.device(DEVICE))
    sampled = step.sample(row.expand(num_samples, -1), rows)
    found = (sampled[:, None] == likely).sum(0)
    expected = row[likely].double().softmax(0) * num_samples
    assert found.sum() == num_samples
    assert ((found - expected) ** 2 / expected).sum() < 31.26  # of 11 degrees of freedom
