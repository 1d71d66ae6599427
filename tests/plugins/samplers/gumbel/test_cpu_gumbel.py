"""The C++ sampler follows the probabilities, and agrees with the steps and the kernels."""

import math
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from filtered_rows import FIELDS, ROWS, after_steps, is_on_the_edge
from gumbel_reference import gumbel_sample, gumbel_scores, noise_of
from hypothesis import given, settings
from hypothesis import strategies as st
from native_libraries import SETS_AND_ARM, use_set

from quire.plugins.loading import load_plugins
from quire.testing.sampling import FusedSamplerContract
from quire.testing.sampling.sampled_rows import sampled_rows, shard_of
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel import cpu_gumbel_library
from quire_samplers.gumbel.cpu_gumbel import CpuGumbel
from quire_samplers.temperatures.temperature import Temperature

CPU = torch.device("cpu")
SAMPLE = 256  # tokens of a row that cpu_gumbel.cpp looks at first
CAPABILITIES = load_plugins().registries.samplers.entry("cpu_gumbel").capabilities
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
    {"top_k": 900, "top_p": 0.5},
    {"temperature": 2.5, "top_p": 0.97},
)


@pytest.fixture(params=SETS_AND_ARM)
def each_set(request, monkeypatch):
    """Sample with the library of each instruction set that this machine has."""
    use_set(monkeypatch, cpu_gumbel_library, request.param)


class TestCpuGumbel(FusedSamplerContract):
    step_class = CpuGumbel
    capabilities = CAPABILITIES
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = MappingProxyType({"temperature": 0.0})
    fused = (Temperature, MinP, TopKTopP)
    mixed = ALL_KINDS


def sample(logits, rows):
    return CpuGumbel(logits.shape[1], CPU).sample(logits, rows)


def sample_fused(logits, rows):
    return CpuGumbel(logits.shape[1], CPU).sample_fused(logits, rows)


def random_logits(num_rows, vocab_size, scale, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=random) * scale


@pytest.mark.parametrize("vocab_size", [1, 3, 17, 300, 4096, 8269])
def test_it_samples_the_tokens_of_the_reference(each_set, vocab_size):
    fields = [{"temperature": row % 5 / 2} for row in range(40)]
    rows = sampled_rows(
        CAPABILITIES, fields, seeds=[(-1) ** n * 7**n for n in range(20)] * 2, positions=range(40)
    )
    rows.slot_fields["child"] += torch.arange(len(rows.slot_fields["child"])) % 3
    logits = random_logits(40, vocab_size, 1.5, seed=vocab_size)
    assert torch.equal(sample(logits, rows), gumbel_sample(logits, rows))


@pytest.mark.parametrize("scale", [0.0, 0.5, 8.0])
@pytest.mark.parametrize("vocab_size", [1, 50, 1024, 12_283])
def test_filters_over_any_vocabulary_are_those_of_the_steps(each_set, vocab_size, scale):
    logits = random_logits(len(ALL_KINDS), vocab_size, scale, seed=7)
    rows = sampled_rows(CAPABILITIES, ALL_KINDS, seeds=range(100, 100 + len(ALL_KINDS)))
    assert torch.equal(sample_fused(logits, rows), gumbel_sample(after_steps(logits, rows), rows))


@pytest.mark.parametrize("fuse", [False, True])
def test_a_token_has_the_same_score_in_every_shard(each_set, fuse):
    fields = [{"temperature": row / 2} for row in range(4)]
    rows = sampled_rows(CAPABILITIES, fields, seeds=range(90, 94))
    logits = random_logits(4, 5000, 1.5, seed=9)
    step = CpuGumbel(logits.shape[1], CPU)
    scaled = Temperature(logits.shape[1], CPU).apply(logits.clone(), rows) if fuse else logits
    expected = gumbel_scores(scaled, rows)
    for first, last in ((0, 1), (0, 5000), (17, 3001), (2490, 2497), (4999, 5000)):
        shard = shard_of(logits, rows, range(first, last))
        scores, token_ids = step.sample_shard_fused(*shard) if fuse else step.sample_shard(*shard)
        torch.testing.assert_close(scores, expected[:, first:last].amax(1))
        assert token_ids.tolist() == (first + expected[:, first:last].argmax(1)).tolist()
        for row, token_id in enumerate(token_ids.tolist()):
            alone = shard_of(logits, rows, range(token_id, token_id + 1))
            found, _ = step.sample_shard_fused(*alone) if fuse else step.sample_shard(*alone)
            assert found[row] == scores[row], "to the bit"


def test_a_shard_that_ends_after_the_vocabulary_is_refused():
    rows = sampled_rows(CAPABILITIES, [{"temperature": 1.0}])
    with pytest.raises(ValueError, match=r"must be float32 \[N, up to 2\]"):
        CpuGumbel(5, CPU).sample_shard(torch.ones(1, 3), replace(rows, first_token_id=3))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_sampled_alike_by_any_number_of_threads(monkeypatch, threads):
    vocab_size = 30_011
    rows = sampled_rows(CAPABILITIES, ALL_KINDS, seeds=range(len(ALL_KINDS)))
    logits = random_logits(len(ALL_KINDS), vocab_size, 3.0, seed=1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    sampler = CpuGumbel(vocab_size, CPU)
    expected = gumbel_sample(after_steps(logits, rows), rows)
    assert torch.equal(sampler.sample_fused(logits, rows), expected)
    greedy = sampled_rows(CAPABILITIES, [{"temperature": 0.0}] * 13, all_greedy=True)
    assert torch.equal(sampler.sample(logits, greedy), logits.argmax(-1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_stay_in_the_room_that_they_share(monkeypatch, threads):
    vocab_size, num_rows = 30_011, 30
    logits = random_logits(num_rows, vocab_size, 3.0, seed=1)
    rows = sampled_rows(CAPABILITIES, [{"top_k": 9000, "top_p": 0.99}] * num_rows)
    whole = torch.full((16 * vocab_size,), 42.0)  # more than three threads need

    def empty(*shape, dtype):
        is_room = dtype == torch.float32
        assert not is_room or shape[0] < len(whole)
        return whole[: shape[0]] if is_room else torch.zeros(*shape, dtype=dtype)

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "empty", empty)
    sampler = CpuGumbel(vocab_size, CPU)
    sampler.sample_fused(logits, rows)
    room = sampler._scratch
    assert (room != 42).any()
    assert (whole[len(room) :] == 42).all()


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 1023, 1025, 5000])
@pytest.mark.parametrize("all_greedy", [True, False])
def test_the_first_of_the_most_likely_tokens_is_taken(each_set, all_greedy, vocab_size):
    rows = sampled_rows(CAPABILITIES, [{"temperature": 0.0}] * 60, all_greedy=all_greedy)
    random = torch.Generator().manual_seed(3)
    logits = torch.randint(-3, 4, (60, vocab_size), generator=random).float()  # many ties
    expected = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert sample(logits, rows).tolist() == expected


@pytest.mark.parametrize("place", [0, 15, 16, 1029, 2999])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("fuse", [True, False])
def test_what_is_not_a_number_wins_its_row(each_set, fuse, bad, place):
    logits = random_logits(len(ALL_KINDS), 3000, 1.0, seed=5)
    logits[:, place] = bad
    rows = sampled_rows(CAPABILITIES, ALL_KINDS)
    sampled = (sample_fused if fuse else sample)(logits, rows)
    assert sampled.tolist() == [place] * len(ALL_KINDS)


def test_a_row_without_a_possible_token_gives_an_impossible_one(each_set):
    logits = torch.full((len(ALL_KINDS), 3000), -math.inf)
    rows = sampled_rows(CAPABILITIES, ALL_KINDS)
    for sampled in (sample(logits, rows), sample_fused(logits, rows)):
        assert ((sampled >= 0) & (sampled < 3000)).all()


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(0, 2**40))
def test_fused_sampling_is_the_same_as_the_separate_steps(given_rows, seed):
    logits = torch.tensor([values for values, _ in given_rows])
    fields = [each for _, each in given_rows]
    rows = sampled_rows(CAPABILITIES, fields, seeds=[seed + row for row in range(len(fields))])
    found = sample_fused(logits, rows)
    expected = sample(after_steps(logits, rows), rows)
    for row, each in enumerate(fields):
        is_possible = bool((logits[row] > -math.inf).any())
        if is_possible and not is_on_the_edge(logits[row], each):
            assert found[row] == expected[row], (logits[row], each)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1024, 9000),
    st.sampled_from([0.01, 1.0, 4.0, 20.0]),
    st.integers(0, 40),
    FIELDS,
    st.integers(0, 2**40),
)
def test_what_a_sample_suggests_changes_nothing(vocab_size, scale, num_peaks, fields, seed):
    """Also where the few likely tokens are not in it, or rows are nearly all masked."""
    logits = random_logits(2, vocab_size, scale, seed)
    peaks = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(seed))[:num_peaks]
    logits[:, peaks] += 15.0
    logits[1, num_peaks * 8 + 1 :] = -math.inf
    logits = logits.bfloat16().float()  # with ties
    rows = sampled_rows(CAPABILITIES, [fields] * 2, seeds=[seed, seed + 1])
    kept = after_steps(logits, rows)
    expected, found = gumbel_sample(kept, rows), sample_fused(logits, rows)
    for row in range(2):
        if not is_on_the_edge(logits[row], fields):
            assert found[row] == expected[row]


@pytest.mark.parametrize("vocab_size", [1024, 9000])
def test_a_sample_of_likely_tokens_alone_does_not_cut_top_k_short(each_set, vocab_size):
    """Those that the sample meets are likely, and no others: it suggests too short a range."""
    logits = torch.zeros(40, vocab_size)
    sampled = torch.arange(SAMPLE) * (vocab_size // SAMPLE)
    logits[:, sampled] = 1.0 + torch.arange(SAMPLE) / SAMPLE
    rows = sampled_rows(CAPABILITIES, [{"top_k": 100}] * 40, seeds=range(40))
    expected = gumbel_sample(after_steps(logits, rows), rows)
    assert sample_fused(logits, rows).tolist() == expected.tolist()


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.2}])
def test_samples_differ_from_the_distribution_only_by_chance(fields):
    num_samples, vocab_size, num_trials = 4000, 60, 20
    found, freedom = [], 0
    for trial in range(num_trials):
        logits = random_logits(1, vocab_size, 0.7, seed=trial)
        rows = sampled_rows(CAPABILITIES, [fields] * num_samples, seeds=[trial] * num_samples)
        rows.slot_fields["child"].copy_(torch.arange(num_samples))
        expected = after_steps(logits, sampled_rows(CAPABILITIES, [fields]))[0].double().softmax(0)
        sampled = sample_fused(logits.expand(num_samples, -1), rows).bincount(minlength=vocab_size)
        is_kept = expected > 0
        assert sampled[~is_kept].sum() == 0
        expected = expected[is_kept] * num_samples
        freedom += len(expected) - 1
        found.append(float(((sampled[is_kept] - expected) ** 2 / expected).sum()))
    assert abs(sum(found) - freedom) < 4 * math.sqrt(2 * freedom)


def test_unlikely_tokens_are_sampled_at_their_probability():
    logits = torch.tensor([[0.0, -8.0, -9.0, -9.5]])
    num_samples = 100_000
    rows = sampled_rows(CAPABILITIES, [{}] * num_samples, seeds=range(num_samples))
    found = sample(logits.expand(num_samples, -1), rows).bincount(minlength=4)[1:]
    expected = logits[0].double().softmax(0)[1:] * num_samples  # 34, 12 and 7
    assert ((found - expected) ** 2 / expected).sum() < 16.27  # once in a thousand, of 3


def test_the_bound_on_noise_is_one():
    """What `most_noise` says in C++, for words of every size; see there."""
    words = torch.cat((torch.arange(0, 2**32, 99_991), 2 ** torch.arange(32), torch.arange(2000)))
    u = ((words.float() + 0.5) * 2.0**-32).double()
    mantissa, exponent = torch.frexp(u)
    short_log = (exponent - 1) + (2 * mantissa - 1)
    assert (noise_of(words) <= -short_log * math.log(2) + 1e-6).all()
    assert noise_of(words).max() < 22.9


def test_the_tokens_never_change():
    rows = sampled_rows(CAPABILITIES, [{}] * 6, seeds=[0, 1, -5, 2**63 - 1, 42, 42])
    rows.slot_fields["child"][5] = 1
    sampled = sample(torch.zeros(6, 10_000), rows)
    assert sampled.tolist() == [7502, 834, 5908, 7314, 5630, 385], "those of the Triton kernels"


@pytest.mark.parametrize("cut", [lambda wide: wide[:, :70], lambda wide: wide[:, :140:2]])
def test_rows_may_lie_apart_in_memory(cut):
    logits = cut(random_logits(len(ALL_KINDS), 190, 2.0, seed=4))
    rows = sampled_rows(CAPABILITIES, ALL_KINDS)
    assert torch.equal(sample_fused(logits, rows), sample_fused(logits.contiguous(), rows))


def test_ties_at_the_kth_place_stay_together():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).repeat(40, 1)
    rows = sampled_rows(CAPABILITIES, [{"top_k": 2}] * 40, seeds=range(40))
    assert set(sample_fused(logits, rows).tolist()) == {0, 1, 2, 3}


def test_a_tie_counts_only_as_far_as_top_k_goes_when_top_p_shares_out():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).repeat(25, 1)
    # Of the two most likely, 1.0 alone makes up 27 %: the first is enough for 0.7, not for 0.75.
    for top_p, kept in ((0.7, {0}), (0.75, {0, 1, 2, 3})):
        rows = sampled_rows(CAPABILITIES, [{"top_k": 2, "top_p": top_p}] * 25, seeds=range(25))
        assert set(sample_fused(logits, rows).tolist()) == kept


def test_logits_stay_as_they_are():
    logits = random_logits(len(ALL_KINDS), 3000, 1.0, seed=5)
    given_logits = logits.clone()
    rows = sampled_rows(CAPABILITIES, ALL_KINDS)
    sample_fused(given_logits, rows)
    assert torch.equal(given_logits, logits)


def noting(step, apply, applied):
    def noted(self, logits, rows):
        applied.append(step)
        return apply(self, logits, rows)

    return noted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, rows: (logits.double(), rows), r"must be float32 \[N, up to 5\], got"),
        (lambda logits, rows: (logits[:, :4], rows), "each row must have 5 logits, not 4"),
        (lambda logits, rows: (logits, replace(rows, slots=rows.slots.int())), "must be int64"),
        (
            lambda logits, rows: (
                logits,
                replace(
                    rows, slot_fields=rows.slot_fields | {"top_k": rows.slot_fields["top_k"].int()}
                ),
            ),
            "field top_k must be contiguous torch.int64",
        ),
        (
            lambda logits, rows: (
                logits,
                replace(
                    rows,
                    slot_fields=rows.slot_fields
                    | {"top_k": rows.slot_fields["top_k"].repeat(2)[::2]},
                ),
            ),
            "field top_k must be contiguous torch.int64",
        ),
        (lambda logits, rows: (logits, replace(rows, positions=rows.positions.int())), "be int64"),
    ],
)
def test_what_the_library_would_misread_is_refused(change, message):
    rows = sampled_rows(CAPABILITIES, [{"temperature": 1.0}])
    with pytest.raises(ValueError, match=message):
        CpuGumbel(5, CPU).sample_fused(*change(torch.ones(1, 5), rows))


@pytest.mark.parametrize(
    ("temperature", "is_neutral"), [(0.0, True), (0.01, False), (0.5, False), (1.0, False)]
)
def test_only_a_temperature_of_zero_is_greedy(temperature, is_neutral):
    assert CpuGumbel(5, CPU).is_neutral({"temperature": temperature}) is is_neutral
