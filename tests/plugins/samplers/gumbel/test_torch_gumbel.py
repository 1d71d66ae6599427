"""Sampling with torch's operators follows the probabilities, with the noise of the kernels."""

from types import MappingProxyType

import pytest
import torch
from gumbel_reference import gumbel_sample, noise_of, row_keys, token_words
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import SamplerContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.gumbel.torch_gumbel import CPU_BLOCK, GROUP, TorchGumbel, gumbel_noise
from quire_samplers.plugin import TEMPERATURE

CAPABILITIES = SamplerCapabilities(stage="sample", fields=(TEMPERATURE,), is_vocab_parallel=True)
CHI_SQUARE_999 = {9: 27.88, 299: 377.0}  # degrees of freedom -> value exceeded once in a thousand
NUMBERS = st.integers(-(2**63), 2**63 - 1)


class TestTorchGumbel(SamplerContract):
    step_class = TorchGumbel
    capabilities = CAPABILITIES
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = MappingProxyType({"temperature": 0.0})


def sample(logits, **rows):
    step = TorchGumbel(logits.shape[1], logits.device)
    fields = [{"temperature": 1.0}] * len(logits)
    return step.sample(logits.clone(), sampled_rows(CAPABILITIES, fields, **rows))


@settings(max_examples=50, deadline=None)
@given(NUMBERS, st.integers(0, 127), st.integers(1, 2**31 - 1), st.integers(0, 200_000))
def test_the_noise_is_that_of_the_kernels(seed, child, position, first):
    numbers = {"seeds": [seed], "children": [child], "positions": [position]}
    rows = sampled_rows(CAPABILITIES, [{}], **numbers)
    expected = noise_of(token_words(row_keys(rows), 3000, first))
    found = gumbel_noise(row_keys(rows)[:, None], torch.arange(3000) + first)
    torch.testing.assert_close(found, expected, atol=4e-6, rtol=1e-6)


def test_the_noise_of_all_words_is_finite_and_near_its_reference():
    rows = sampled_rows(CAPABILITIES, [{}], seeds=[3])
    found = gumbel_noise(row_keys(rows)[:, None], torch.arange(2**21))
    expected = noise_of(token_words(row_keys(rows), 2**21))
    torch.testing.assert_close(found, expected, atol=4e-6, rtol=1e-6)
    assert found.max() > 12
    assert found.min() < -2.5


def test_tokens_are_those_of_the_reference():
    logits = torch.randn(500, 300, generator=torch.Generator().manual_seed(4)) * 2
    rows = sampled_rows(CAPABILITIES, [{"temperature": 1.0}] * 500, seeds=range(500))
    found = TorchGumbel(300, logits.device).sample(logits, rows)
    assert torch.equal(found, gumbel_sample(logits, rows))
    assert len(found.unique()) > 100


def whole_row_best(logits, rows):
    noise = gumbel_noise(row_keys(rows)[:, None], torch.arange(logits.shape[1]))
    return (noise * (rows.field("temperature") > 0) + logits).max(-1)


BLOCK = CPU_BLOCK // (8 * GROUP) * GROUP  # columns in a block of eight rows


@pytest.mark.parametrize(
    "vocab_size", [1, GROUP - 1, GROUP, GROUP + 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK + 100]
)
def test_blocks_give_the_tokens_of_whole_rows(vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (torch.randn(8, vocab_size, generator=generator) * 2).round()  # greedy rows have ties
    logits[2] = -torch.inf
    logits[3, vocab_size // 2 :: 7] = torch.nan
    logits[4, -1] = torch.nan
    logits[5, vocab_size // 3 :: 5] = torch.inf
    temperatures = [1.0, 0.0, 1.0, 0.7, 1.0, 0.7, 0.0, 1.0]
    fields = [{"temperature": temperature} for temperature in temperatures]
    rows = sampled_rows(CAPABILITIES, fields, seeds=range(8))
    step, kept = TorchGumbel(vocab_size, logits.device), logits.clone()
    scores, columns = whole_row_best(logits, rows)
    assert torch.equal(step.sample(logits, rows), columns)
    found = step.sample_shard(logits, rows)
    torch.testing.assert_close(found[0], scores, equal_nan=True)
    assert torch.equal(found[1], columns)
    torch.testing.assert_close(logits, kept, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("vocab_size", [10, 300])
@pytest.mark.parametrize("varied", ["seeds", "positions"])
def test_many_samples_follow_the_distribution(vocab_size, varied):
    num_samples = 60_000
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 0.7
    numbers = {"seeds": [42] * num_samples} | {varied: range(1, num_samples + 1)}
    sampled = sample(logits.expand(num_samples, -1), **numbers)
    expected = logits.double().softmax(0) * num_samples
    found = sampled.bincount(minlength=vocab_size)
    assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE_999[vocab_size - 1]


def test_children_of_one_seed_differ():
    logits = torch.zeros(64, 1000)
    sampled = sample(logits, seeds=[9] * 64, children=range(64))
    assert len(sampled.unique()) > 50


def test_logits_that_are_not_numbers_still_give_a_token_id():
    logits = torch.full((3, 20), torch.nan)
    assert sample(logits).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("temperature", "is_neutral"), [(0.0, True), (0.01, False), (0.5, False), (1.0, False)]
)
def test_only_a_temperature_of_zero_is_greedy(temperature, is_neutral):
    step = TorchGumbel(3, torch.device("cpu"))
    assert step.is_neutral({"temperature": temperature}) is is_neutral


def test_a_request_alone_samples_at_random():
    sampled = {int(sample(torch.zeros(1, 20), seeds=[seed])) for seed in range(30)}
    assert len(sampled) > 10


def test_a_token_without_probability_is_never_sampled():
    logits = torch.full((50, 256), -torch.inf)
    logits[:, 70] = -50.0
    assert sample(logits, seeds=range(50)).tolist() == [70] * 50
    logits[:, 3] = torch.nan
    assert sample(logits, seeds=range(50)).tolist() == [3] * 50, "so that the worker fails the row"
