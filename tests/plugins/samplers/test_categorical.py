"""Categorical sampling follows the probabilities, and depends on seed, child and position only."""

from types import MappingProxyType

import pytest
import torch

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import SamplerContract
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.categorical import WIDTH, Categorical, by_cumulative
from quire_samplers.plugin import TEMPERATURE

CAPABILITIES = SamplerCapabilities(stage="sample", fields=(TEMPERATURE,))
CHI_SQUARE_999 = {9: 27.88, 299: 377.0}  # degrees of freedom -> value exceeded once in a thousand


class TestCategorical(SamplerContract):
    step_class = Categorical
    capabilities = CAPABILITIES
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = MappingProxyType({"temperature": 0.0})


class TestCategoricalOverSeveralBlocks(TestCategorical):
    vocab_size = 3 * WIDTH + 5


class TestCategoricalOverWholeBlocks(TestCategorical):
    vocab_size = 2 * WIDTH


def sample(logits, **rows):
    step = Categorical(logits.shape[1], logits.device)
    fields = [{"temperature": 1.0}] * len(logits)
    return step.sample(logits.clone(), sampled_rows(CAPABILITIES, fields, **rows))


@pytest.mark.parametrize("vocab_size", [10, 300])
def test_many_seeds_follow_the_distribution(vocab_size):
    num_samples = 60_000
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 0.7
    sampled = sample(logits.expand(num_samples, -1), seeds=range(num_samples))
    expected = logits.double().softmax(0) * num_samples
    found = sampled.bincount(minlength=vocab_size)
    assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE_999[vocab_size - 1]


@pytest.mark.parametrize("vocab_size", [10, 300])
def test_many_positions_follow_the_distribution(vocab_size):
    num_samples = 60_000
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(2)) * 0.7
    where = range(1, num_samples + 1)
    sampled = sample(logits.expand(num_samples, -1), seeds=[42] * num_samples, positions=where)
    expected = logits.double().softmax(0) * num_samples
    found = sampled.bincount(minlength=vocab_size)
    assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE_999[vocab_size - 1]


def test_children_of_one_seed_differ():
    logits = torch.zeros(64, 1000)
    rows = sampled_rows(CAPABILITIES, [{"temperature": 1.0}] * 64, seeds=[9] * 64)
    rows.slot_fields["child"][:64] = torch.arange(64)
    sampled = Categorical(1000, logits.device).sample(logits, rows)
    assert len(sampled.unique()) > 50


@pytest.mark.parametrize("vocab_size", [1, 3, WIDTH, WIDTH + 1, 5 * WIDTH - 1])
def test_the_ends_of_the_unit_interval_hit_possible_tokens(vocab_size):
    probs = torch.rand(2, vocab_size)
    probs[:, -1] = 0 if vocab_size > 1 else 1
    if vocab_size > 2:
        probs[:, 0] = 0
    for u in (0.0, 1 - 2.0**-52):
        token_ids = by_cumulative(probs, torch.full((2,), u, dtype=torch.float64))
        assert (probs.gather(1, token_ids.unsqueeze(1)) > 0).all()


def test_the_inverse_of_the_cumulative_sum_is_exact_enough():
    random = torch.Generator().manual_seed(3)
    probs = (torch.randn(400, 1000, generator=random) * 2).softmax(-1)
    u = torch.rand(400, generator=random, dtype=torch.float64)
    sums = probs.double().cumsum(-1)
    plain = (sums > (u * sums[:, -1]).unsqueeze(1)).int().argmax(-1)
    found = by_cumulative(probs, u)
    before = torch.where(found > 0, sums.gather(1, (found - 1).clamp(min=0)[:, None])[:, 0], 0)
    is_on_the_edge = (before - u * sums[:, -1]).abs() < 1e-6
    assert ((found == plain) | is_on_the_edge).all()
    assert (found == plain).float().mean() > 0.99


def test_logits_that_are_not_numbers_still_give_a_token_id():
    logits = torch.full((3, 20), torch.nan)
    assert sample(logits).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("temperature", "is_neutral"), [(0.0, True), (0.01, False), (0.5, False), (1.0, False)]
)
def test_only_a_temperature_of_zero_is_greedy(temperature, is_neutral):
    step = Categorical(3, torch.device("cpu"))
    assert step.is_neutral({"temperature": temperature}) is is_neutral


def test_a_request_alone_samples_at_random():
    sampled = {int(sample(torch.zeros(1, 20), seeds=[seed])) for seed in range(30)}
    assert len(sampled) > 10


@pytest.mark.parametrize("vocab_size", [WIDTH + 3, 3 * WIDTH])
def test_each_token_is_found_at_its_own_share(vocab_size):
    probs = torch.full((vocab_size, vocab_size), 1 / vocab_size)
    u = (torch.arange(vocab_size).double() + 0.5) / vocab_size
    assert by_cumulative(probs, u).tolist() == list(range(vocab_size))


def test_a_token_without_probability_is_replaced_by_the_most_likely():
    logits = torch.full((50, 2 * WIDTH), -torch.inf)
    logits[:, 70] = 0.0
    assert sample(logits, seeds=range(50)).tolist() == [70] * 50
    logits[:, 3] = torch.nan
    assert sample(logits, seeds=range(50)).tolist() == [3] * 50
