"""Ranks that have a shard of the vocabulary each sample the tokens of one that has it whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_parts import bitmask
from sharded_pipeline import KINDS, Batch, pipeline_of, sample_on_ranks, shard_of

from quire.errors import RequestFailedError
from quire.interfaces.sampling import SampledRows
from quire.layers import SingleDevice
from quire.testing.model.threaded_ranks import run_ranks
from quire_samplers.gumbel.cpu_gumbel import CpuGumbel

VOCAB_SIZE = 71  # of which two, three and four ranks have unequal shards
PARALLEL = [kind for kind in KINDS if kind != "whole rows"]
TP_SIZES = [2, 3, 4]
MIXED = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "bias": 4.0},
    {"temperature": 0.0, "penalty": 5.0},
    {"temperature": 1.0, "penalty": 1.5, "bias": -2.0},
    {"min_tokens": 9, "stop_token_ids": (3, 30, 70)},
)


def random_logits(num_rows, vocab_size=VOCAB_SIZE, seed=2):
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def assert_as_one_rank(batch, tp_size, kind):
    """All ranks sample the tokens of one that has the whole vocabulary; returns the bytes sent."""
    (alone,) = sample_on_ranks(batch, 1, kind)
    ranks = sample_on_ranks(batch, tp_size, kind)
    for rank in ranks:
        assert rank.tokens.token_ids == alone.tokens.token_ids
        assert rank.tokens.is_valid == alone.tokens.is_valid
        assert rank.tokens.logprobs == alone.tokens.logprobs
        assert rank.sent_bytes == ranks[0].sent_bytes
    return ranks[0].sent_bytes


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("kind", PARALLEL)
def test_ranks_exchange_eight_bytes_a_row(kind, tp_size):
    batch = Batch(MIXED, random_logits(len(MIXED)), [bitmask(1, [2, 40, 70], VOCAB_SIZE)])
    assert assert_as_one_rank(batch, tp_size, kind) == [8 * len(MIXED)]


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("needs", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}])
def test_a_filter_makes_ranks_gather_whole_rows(kind, tp_size, needs):
    batch = Batch([*MIXED, needs], random_logits(len(MIXED) + 1))
    padded = -(-VOCAB_SIZE // tp_size)
    assert assert_as_one_rank(batch, tp_size, kind) == [4 * padded * len(batch.requests)]


@pytest.mark.parametrize("tp_size", TP_SIZES)
def test_a_sampler_that_declares_nothing_gets_whole_rows(tp_size):
    batch = Batch(MIXED, random_logits(len(MIXED)))
    padded = -(-VOCAB_SIZE // tp_size)
    assert assert_as_one_rank(batch, tp_size, "whole rows") == [4 * padded * len(MIXED)]


@pytest.mark.parametrize("tp_size", TP_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_rows_are_taken_from_shards_with_any_sampler(kind, tp_size):
    requests = [{"temperature": 0.0}, {"temperature": 0.0, "penalty": 3.0}, {"temperature": 0.0}]
    batch = Batch(requests, random_logits(3), [bitmask(2, [60, 65], VOCAB_SIZE)])
    assert assert_as_one_rank(batch, tp_size, kind) == [8 * 3]


@pytest.mark.parametrize("kind", PARALLEL)
def test_logits_are_gathered_only_for_rows_with_log_probabilities(kind):
    requests = [*MIXED, {"num_logprobs": 2}, {"temperature": 0.0, "num_logprobs": 0}]
    batch = Batch(requests, random_logits(len(requests)))
    padded = -(-VOCAB_SIZE // 3)
    assert assert_as_one_rank(batch, 3, kind) == [4 * padded * 2, 8 * len(requests)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_processed_log_probabilities_are_gathered_after_all_steps(kind, mode):
    requests = [{"num_logprobs": 3, "temperature": 0.5}, {"temperature": 0.0, "num_logprobs": 1}]
    masks = [bitmask(0, [7, 30, 66], VOCAB_SIZE)]
    batch = Batch(requests, random_logits(2), masks, mode)
    assert_as_one_rank(batch, 3, kind)
    (rank,) = sample_on_ranks(batch, 1, kind)
    assert set(rank.tokens.logprobs[0].token_ids) == {7, 30, 66}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [(0, 70), (17, 18), (35, 36), (53, 54, 70)])
def test_of_equal_logits_the_lowest_id_is_taken(kind, tied):
    logits = random_logits(2)
    logits[:, list(tied)] = 50.0
    requests = [{"temperature": 0.0}] * 2
    for tp_size in (1, *TP_SIZES):
        for rank in sample_on_ranks(Batch(requests, logits), tp_size, kind):
            assert rank.tokens.token_ids == [tied[0]] * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("token_id", [0, 40, 69])
def test_a_logit_that_is_no_number_fails_its_row_on_every_rank(kind, bad, token_id):
    logits = random_logits(len(MIXED))
    (good,) = sample_on_ranks(Batch(MIXED, logits), 1, kind)
    logits[1::2, token_id] = bad
    for rank in sample_on_ranks(Batch(MIXED, logits), 3, kind):
        assert rank.tokens.is_valid == [row % 2 == 0 for row in range(len(MIXED))]
        assert rank.tokens.token_ids[::2] == good.tokens.token_ids[::2]
        if kind != "whole rows":
            assert rank.tokens.token_ids[1::2] == [token_id] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_never_one_of_the_padding(kind):
    """The padding's logits are 0, more than those of all tokens."""
    logits = random_logits(len(MIXED)) - 100.0
    batch = Batch(MIXED, logits)
    for tp_size in TP_SIZES:
        assert_as_one_rank(batch, tp_size, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_any_token_fails_on_every_rank(kind):
    batch = Batch(MIXED, random_logits(len(MIXED)), [bitmask(1, [], VOCAB_SIZE)])
    for rank in sample_on_ranks(batch, 3, kind):
        assert rank.tokens.is_valid == [row != 1 for row in range(len(MIXED))]


def test_a_mask_that_is_too_short_is_refused_by_every_rank():
    batch = Batch(MIXED, random_logits(len(MIXED)), [bitmask(1, [1], 64)])
    first = pipeline_of(MIXED, VOCAB_SIZE, "cpu_gumbel", FirstOfThree())
    slots = list(range(len(MIXED)))
    with pytest.raises(ValueError, match="64 bits for 71 tokens"):
        first.run(shard_of(batch.logits, first), slots, torch.tensor(slots), batch.masks)


class FirstOfThree(SingleDevice):
    rank, size = 0, 3


VALUES = st.sampled_from([-math.inf, -2.0, -0.0, 0.0, 0.5, 0.5, 1.0, 1.0]) | st.floats(
    -4, 4, width=32
)
BAD = st.sampled_from([math.nan, math.inf])
REQUESTS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7])},
    optional={
        "penalty": st.sampled_from([0.0, 0.5, 3.0]),
        "bias": st.sampled_from([0.5, -3.0]),
        "top_k": st.sampled_from([0, 0, 0, 4]),
        "num_logprobs": st.sampled_from([0, 2]),
        "min_tokens": st.just(9),
        "stop_token_ids": st.lists(st.integers(0, 40), max_size=3).map(tuple),
    },
)


@st.composite
def batches(draw):
    """A batch of up to five rows with ties, masks, and now and then a logit that is no number."""
    vocab_size = draw(st.integers(12, 40) | st.sampled_from([64, 65]))
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=5))
    row = st.lists(VALUES, min_size=vocab_size, max_size=vocab_size)
    logits = torch.tensor([draw(row) for _ in requests])
    masks = []
    for slot in range(len(requests)):
        if draw(st.booleans()):
            allowed = draw(st.sets(st.integers(0, vocab_size - 1)))
            masks.append(bitmask(slot, allowed, vocab_size))
        if draw(st.integers(0, 3)) == 0:
            logits[slot, draw(st.integers(0, vocab_size - 1))] = draw(BAD)
    return Batch(requests, logits, masks)


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(2, 4), st.sampled_from(["whole rows", *PARALLEL[2:]]))
def test_any_batch_is_sampled_as_by_one_rank(batch, tp_size, kind):
    (alone,) = sample_on_ranks(batch, 1, kind)
    for rank in sample_on_ranks(batch, tp_size, kind):
        assert rank.tokens.is_valid == alone.tokens.is_valid
        for row, is_valid in enumerate(alone.tokens.is_valid):
            if is_valid:
                assert rank.tokens.token_ids[row] == alone.tokens.token_ids[row]
                found, expected = rank.tokens.logprobs[row], alone.tokens.logprobs[row]
                assert str(found) == str(expected)  # they may be NaN, where it is masked


@pytest.mark.parametrize("kind", [kind for kind in PARALLEL if "fused" in kind])
def test_captured_sampling_of_shards_gives_the_tokens_of_eager_sampling(kind):
    requests = [{"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.3}]
    logits = random_logits(3)
    (expected,) = sample_on_ranks(Batch(requests, logits), 1, kind)

    def captured(group):
        pipeline = pipeline_of(requests, VOCAB_SIZE, kind, group)
        tables, local = pipeline.tables, shard_of(logits, pipeline)
        given = local.clone()
        rows = SampledRows(
            slots=torch.arange(3),
            positions=torch.tensor(tables.num_known),
            slot_fields=tables.slot_fields,
            token_ids=tables.token_ids,
            num_prompt_tokens=tables.num_prompt_tokens,
        )
        sampled = pipeline.sample_fused(given, rows).read()
        assert torch.equal(given, local)
        return sampled, group.sent_bytes

    for sampled, sent_bytes in run_ranks(3, captured):
        assert sampled.token_ids == expected.tokens.token_ids
        assert all(sampled.is_valid)
        assert sent_bytes == [8 * 3]


def test_only_what_shards_allow_is_captured():
    requests = [*MIXED[:2], {"top_k": 5}, {"temperature": 0.0, "top_k": 5}, {"num_logprobs": 1}]
    pipeline = pipeline_of(requests, VOCAB_SIZE, "cpu_gumbel, fused", FirstOfThree())
    assert pipeline.is_fused((), ())
    assert pipeline.is_fused([0, 1, 3], ())
    assert not pipeline.is_fused([0, 2], ()), "top-k needs whole rows"
    assert not pipeline.is_fused([4], ()), "log probabilities need whole rows"
    alone = pipeline_of(requests, VOCAB_SIZE, "cpu_gumbel, fused", SingleDevice())
    assert alone.is_fused([0, 2], ())


class FusesOnly(CpuGumbel):
    """Fuses steps, and declares nothing else."""


def test_a_fusing_sampler_that_needs_whole_rows_is_not_captured(monkeypatch):
    monkeypatch.setitem(KINDS, "fuses only", (FusesOnly, True))
    pipeline = pipeline_of(MIXED, VOCAB_SIZE, "fuses only", FirstOfThree())
    assert not pipeline.is_fused((), ())
    batch = Batch(MIXED, random_logits(len(MIXED)))
    assert assert_as_one_rank(batch, 2, "fuses only") == [4 * 36 * len(MIXED)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_warms_up_by_the_same_collectives(kind):
    def warmed_up(group):
        pipeline = pipeline_of(MIXED, VOCAB_SIZE, kind, group)
        sampled = pipeline.warm_up(shard_of(random_logits(2), pipeline))
        return [each.read().token_ids for each in sampled], group.sent_bytes

    ranks = run_ranks(3, warmed_up)
    assert ranks[0] == ranks[1] == ranks[2]
    tokens, sent_bytes = ranks[0]
    whole = 4 * 24 * 2
    shards = [16] if kind == "whole rows" else [16, 16, 16] if "fused" in kind else [16, 16]
    assert sent_bytes == [*shards, whole]
    greedy = random_logits(2).argmax(-1).tolist()
    assert tokens[0] == tokens[len(shards)] == greedy


def failing(method):
    class Fails(CpuGumbel):
        pass

    def fail(self, logits, rows):
        raise ZeroDivisionError

    setattr(Fails, method, fail)
    return Fails


@pytest.mark.parametrize("method", ["sample_shard", "sample_shard_fused"])
def test_warming_up_finds_a_sampler_that_fails_on_shards(monkeypatch, method):
    step = failing(method)
    monkeypatch.setitem(KINDS, "fails", (step, True))
    monkeypatch.setattr("sharded_pipeline.WORK_ON_SHARDS", (step,))

    def warm_up(group):
        pipeline = pipeline_of(MIXED, VOCAB_SIZE, "fails", group)
        with pytest.raises(RequestFailedError, match="Fails failed: ZeroDivisionError"):
            pipeline.warm_up(shard_of(random_logits(2), pipeline))

    run_ranks(2, warm_up)


WRONG = {
    "token ids alone": (lambda scores, token_ids: token_ids, "failed: "),
    "scores in double": (
        lambda scores, token_ids: (scores.double(), token_ids),
        "Wrong, for scores, returned .* float64",
    ),
    "int32": (lambda scores, token_ids: (scores, token_ids.int()), "Wrong returned .* int32"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_sampler_that_returns_no_scores_is_blamed(monkeypatch, wrong):
    change, message = WRONG[wrong]

    class Wrong(CpuGumbel):
        def sample_shard(self, logits, rows):
            return change(*super().sample_shard(logits, rows))

    monkeypatch.setitem(KINDS, "wrong", (Wrong, False))
    monkeypatch.setattr("sharded_pipeline.WORK_ON_SHARDS", (Wrong,))
    pipeline = pipeline_of([{"temperature": 1.0}] * 3, VOCAB_SIZE, "wrong", FirstOfThree())
    with pytest.raises(RequestFailedError, match=message):
        pipeline.run(shard_of(random_logits(3), pipeline), [0, 1, 2], torch.arange(3), ())
