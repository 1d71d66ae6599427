"""Gumbel sampling follows the probabilities, with fused filters as with separate steps."""

import math
from functools import partial
from types import MappingProxyType

import pytest
import torch
from filtered_rows import ROWS, after_steps, is_on_the_edge
from gumbel_reference import gumbel_sample, gumbel_scores, noise_of, row_keys, token_words
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE

from quire.interfaces.sampling import SamplerCapabilities
from quire.testing.sampling import FusedSamplerContract
from quire.testing.sampling import sampled_rows as sampled
from quire.testing.sampling.sampled_rows import shard_of
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel import gumbel
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.gumbel.gumbel_kernels import CHUNK
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P
from quire_samplers.temperatures.temperature import Temperature

CAPABILITIES = SamplerCapabilities(
    stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P), is_vocab_parallel=True
)
sampled_rows = partial(sampled.sampled_rows, device=DEVICE.type)
ALL_KINDS = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.6},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"min_p": 0.1},
    {"temperature": 1.5, "min_p": 0.02, "top_p": 0.9, "top_k": 40},
    {"top_k": 1},
    {"top_p": 0.0},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.4, "min_p": 0.3},
    {"temperature": 1e-9, "top_k": 7},
)


class TestGumbel(FusedSamplerContract):
    step_class = Gumbel
    capabilities = CAPABILITIES
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = MappingProxyType({"temperature": 0.0})
    fused = (Temperature, MinP, TopKTopP)
    mixed = ALL_KINDS
    num_counted_rows = (
        20_000 if DEVICE.type == "cuda" else 0
    )  # Triton's interpreter runs row by row
    device = DEVICE.type


def sample(logits, rows):
    return Gumbel(logits.shape[1], DEVICE).sample(logits, rows)


def sample_fused(logits, rows):
    return Gumbel(logits.shape[1], DEVICE).sample_fused(logits, rows)


def random_logits(num_rows, vocab_size, scale, seed):
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(num_rows, vocab_size, generator=random) * scale).to(DEVICE)


@pytest.mark.parametrize("vocab_size", [3, 300, CHUNK, 2 * CHUNK + 77])
def test_the_kernels_sample_the_tokens_of_the_reference(vocab_size):
    fields = [{"temperature": row % 5 / 2} for row in range(15)]
    rows = sampled_rows(
        CAPABILITIES, fields, seeds=[(-1) ** n * 7**n for n in range(15)], positions=range(1, 16)
    )
    rows.slot_fields["child"] += torch.arange(len(rows.slot_fields["child"]), device=DEVICE) % 3
    logits = random_logits(15, vocab_size, 1.5, seed=vocab_size)
    assert torch.equal(sample(logits, rows), gumbel_sample(logits, rows))


@pytest.mark.parametrize("scale", [0.5, 8.0])
@pytest.mark.parametrize("vocab_size", [1, 50, 3 * CHUNK - 5])
def test_filters_over_any_vocabulary_are_those_of_the_steps(vocab_size, scale):
    logits = random_logits(len(ALL_KINDS), vocab_size, scale, seed=7)
    rows = sampled_rows(CAPABILITIES, ALL_KINDS, seeds=range(100, 100 + len(ALL_KINDS)))
    assert torch.equal(sample_fused(logits, rows), gumbel_sample(after_steps(logits, rows), rows))


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of the interpreter: huge / small
@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(0, 2**40))
def test_fused_sampling_is_the_same_as_the_separate_steps(given_rows, seed):
    logits = torch.tensor([values for values, _ in given_rows], device=DEVICE)
    fields = [each for _, each in given_rows]
    rows = sampled_rows(CAPABILITIES, fields, seeds=[seed + row for row in range(len(fields))])
    found = sample_fused(logits, rows)
    expected = sample(after_steps(logits, rows), rows)
    for row, each in enumerate(fields):
        is_possible = bool((logits[row] > -math.inf).any())
        if is_possible and not is_on_the_edge(logits[row], each):
            assert found[row] == expected[row], (logits[row], each)


@pytest.mark.parametrize("varying", ["seeds", "positions", "children"])
def test_samples_differ_from_the_distribution_only_by_chance(varying):
    num_samples, vocab_size, num_trials = 4000, 60, 30
    found = []
    for trial in range(num_trials):
        logits = random_logits(1, vocab_size, 0.7, seed=trial)
        counted = range(1, num_samples + 1)
        seeds = [trial + n for n in counted] if varying == "seeds" else [trial] * num_samples
        rows = sampled_rows(
            CAPABILITIES,
            [{}] * num_samples,
            seeds=seeds,
            positions=counted if varying == "positions" else None,
        )
        if varying == "children":
            rows.slot_fields["child"].copy_(torch.arange(num_samples))
        found.append(chi_square(logits, gumbel_sample(logits, rows)))
    freedom = vocab_size - 1  # the mean of chi-square; its variance is twice that
    assert abs(sum(found) / num_trials - freedom) < 4 * math.sqrt(2 * freedom / num_trials)
    assert max(found) < freedom + 6 * math.sqrt(2 * freedom)


def chi_square(logits, sampled):
    expected = logits[0].double().softmax(0) * len(sampled)
    return float(((sampled.bincount(minlength=len(expected)) - expected) ** 2 / expected).sum())


def test_unlikely_tokens_are_sampled_at_their_probability():
    logits = torch.tensor([[0.0, -9.0, -10.0, -11.0]], device=DEVICE)
    num_samples = 400_000
    rows = sampled_rows(CAPABILITIES, [{}] * num_samples, seeds=range(num_samples))
    found = gumbel_sample(logits, rows).bincount(minlength=4)[1:]
    expected = logits[0].double().softmax(0)[1:] * num_samples  # 49, 18 and 7
    assert ((found - expected) ** 2 / expected).sum() < 16.27  # once in a thousand, of 3


def test_noise_is_finite_for_every_word():
    ends = torch.tensor([0, 1, 2, 2**26 - 1, 2**26, 2**31, 2**32 - 200, 2**32 - 1])
    noise = noise_of(ends)
    assert noise.isfinite().all()
    assert (noise[1:] <= noise[:-1]).all()
    assert noise[0] == pytest.approx(math.log(2**33))


def test_noise_is_close_to_the_exact_logarithms():
    words = torch.cat((torch.arange(1, 2**32, 99_991), 2 ** torch.arange(32)))
    u = (words.double() + 0.5) * 2.0**-32
    error = (noise_of(words) + torch.log(-torch.log1p(-u))).abs()
    assert error[u < 0.99].max() < 5e-6
    assert error.max() < 0.35  # the least noises are rounded; they win nothing


def test_noises_of_neighbours_are_not_correlated():
    rows = sampled_rows(
        CAPABILITIES,
        [{}] * 400,
        seeds=[n // 20 for n in range(400)],
        positions=[n % 20 for n in range(400)],
    )
    words = token_words(row_keys(rows), 400)
    u = words.double() / 2**32 - 0.5  # [20 seeds * 20 positions, 400 tokens]
    grid = u.view(20, 20, 400)
    for shifted in (u[:, 1:] * u[:, :-1], grid[1:] * grid[:-1], grid[:, 1:] * grid[:, :-1]):
        assert shifted.mean().abs() < 4 / 12 / math.sqrt(shifted.numel())


def test_the_tokens_never_change():
    rows = sampled_rows(CAPABILITIES, [{}] * 6, seeds=[0, 1, -5, 2**63 - 1, 42, 42])
    rows.slot_fields["child"][5] = 1
    sampled = sample(torch.zeros(6, 10_000, device=DEVICE), rows)
    assert sampled.tolist() == [7502, 834, 5908, 7314, 5630, 385]


def test_children_of_one_seed_differ():
    rows = sampled_rows(CAPABILITIES, [{}] * 64, seeds=[9] * 64)
    rows.slot_fields["child"][:64] = torch.arange(64)
    assert len(sample(torch.zeros(64, 1000, device=DEVICE), rows).unique()) > 50


def test_the_noise_of_a_token_does_not_depend_on_how_many_there_are():
    rows = sampled_rows(CAPABILITIES, [{}] * 8, seeds=range(8))
    logits = torch.full((8, 2 * CHUNK), -1e4, device=DEVICE)
    logits[:, :100] = random_logits(8, 100, 1.0, seed=3)
    assert torch.equal(sample(logits, rows), sample(logits[:, :100].contiguous(), rows))


@pytest.mark.parametrize("fuse", [False, True])
def test_a_token_has_the_same_score_in_every_shard(fuse):
    fields = [{"temperature": row / 2} for row in range(4)]
    rows = sampled_rows(CAPABILITIES, fields, seeds=range(90, 94))
    logits = random_logits(4, CHUNK + 600, 1.5, seed=9)
    step = Gumbel(logits.shape[1], DEVICE)
    scaled = Temperature(logits.shape[1], DEVICE).apply(logits.clone(), rows) if fuse else logits
    expected = gumbel_scores(scaled, rows)
    for first, last in ((0, 1), (0, CHUNK + 600), (17, CHUNK + 20), (CHUNK - 3, CHUNK + 4)):
        shard = shard_of(logits, rows, range(first, last))
        scores, token_ids = step.sample_shard_fused(*shard) if fuse else step.sample_shard(*shard)
        torch.testing.assert_close(scores, expected[:, first:last].amax(1))
        assert token_ids.tolist() == (first + expected[:, first:last].argmax(1)).tolist()
        for row, token_id in enumerate(token_ids.tolist()):
            alone = shard_of(logits, rows, range(token_id, token_id + 1))
            found, _ = step.sample_shard_fused(*alone) if fuse else step.sample_shard(*alone)
            assert found[row] == scores[row], "to the bit"


def test_it_does_not_matter_how_many_programs_weigh_a_row(monkeypatch):
    logits = random_logits(3, 3 * CHUNK - 5, 1.0, seed=6)
    rows = sampled_rows(CAPABILITIES, [{"top_p": 0.3}, {"top_k": 50}, {"top_k": 20, "top_p": 0.8}])
    expected = sample_fused(logits, rows)
    monkeypatch.setattr(gumbel, "WEIGHING_PROGRAMS", 1)
    assert torch.equal(sample_fused(logits, rows), expected)


def test_rows_may_lie_apart_in_memory():
    wide = random_logits(len(ALL_KINDS), 90, 2.0, seed=4)
    rows = sampled_rows(CAPABILITIES, ALL_KINDS)
    cut = wide[:, :70]
    assert torch.equal(sample_fused(cut, rows), sample_fused(cut.contiguous(), rows))


def test_ties_at_the_kth_place_stay_together():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]], device=DEVICE).repeat(40, 1)
    rows = sampled_rows(CAPABILITIES, [{"top_k": 2}] * 40, seeds=range(40))
    assert set(sample_fused(logits, rows).tolist()) == {0, 1, 2, 3}


def test_a_tie_counts_only_as_far_as_top_k_goes_when_top_p_shares_out():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]], device=DEVICE).repeat(25, 1)
    # Of the two most likely, 1.0 alone makes up 27 %: the first is enough for 0.7, not for 0.75.
    for top_p, kept in ((0.7, {0}), (0.75, {0, 1, 2, 3})):
        fields = [{"top_k": 2, "top_p": top_p}] * 25
        rows = sampled_rows(CAPABILITIES, fields, seeds=range(25))
        assert set(sample_fused(logits, rows).tolist()) == kept


def test_a_flat_row_of_many_tokens_keeps_exactly_the_first_k():
    vocab_size = 2 * CHUNK + 9
    rising = torch.arange(vocab_size, device=DEVICE) * 1e-4  # closer than pivots
    logits = rising.expand(6, -1).contiguous()
    rows = sampled_rows(CAPABILITIES, [{"top_k": 3}] * 3 + [{"top_p": 0.001}] * 3)
    sampled = sample_fused(logits, rows)
    assert (sampled[:3] >= vocab_size - 3).all()
    assert torch.equal(sampled, sample(after_steps(logits, rows), rows))


def test_top_k_ends_as_well_at_logits_where_the_search_begins():
    logits = (-(torch.arange(5, device=DEVICE) ** 2) / 16).repeat(24, 1)  # the first pivots
    fields = [{"temperature": 1.0, "top_k": 1 + row // 8} for row in range(24)]
    rows = sampled_rows(CAPABILITIES, fields, seeds=range(24))
    assert torch.equal(sample_fused(logits, rows), sample(after_steps(logits, rows), rows))


def test_the_noise_of_a_token_that_wins_a_large_vocabulary_is_exact():
    seeds = [6917, 93825, 131344, 246158, 261484, 368114, 410952, 509837] * 2
    rows = sampled_rows(CAPABILITIES, [{}] * 16, seeds=seeds, positions=[1] * 16)
    words = token_words(row_keys(rows), 2)
    assert (words[:, 0] < 2**32 * 1e-5).all()  # as the least of 100,000 tokens
    noise = noise_of(words)
    logits = torch.zeros(16, 2, device=DEVICE)
    logits[:, 1] = noise[:, 0] - noise[:, 1]  # with which both tokens are as good
    logits[:8, 1] -= 1e-4
    logits[8:, 1] += 1e-4
    assert sample(logits, rows).tolist() == [0] * 8 + [1] * 8
