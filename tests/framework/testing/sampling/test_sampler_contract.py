"""Sampler conformance kit: every check rejects a broken sampler, and right ones pass."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from gumbel_reference import gumbel_sample, gumbel_scores

from quire.interfaces.sampling import Sampler, SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows
from quire.testing.sampling.sampler_contract import VARIED, FusedSamplerContract, SamplerContract
from quire_samplers.filters.min_p import MinP
from quire_samplers.filters.top_k_top_p import TopKTopP
from quire_samplers.gumbel.torch_gumbel import TorchGumbel, gumbel_noise
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P
from quire_samplers.temperatures.temperature import Temperature
from quire_samplers.uniform_noise import PURPOSE_SAMPLE, row_keys

SAMPLE = SamplerCapabilities(stage="sample", fields=(TEMPERATURE,))
ALL = SamplerCapabilities(stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P))
STEPS = (Temperature, MinP, TopKTopP)
MIXED = ({"top_k": 2}, {"temperature": 1.5, "min_p": 0.9}, {"temperature": 3.0, "top_p": 0.4})


class Fusing(TorchGumbel):
    """Runs the logits processors one by one."""

    steps = STEPS

    def sample_fused(self, logits, rows):
        for step in self.steps:
            logits = step(self.vocab_size, self.device).apply(logits.clone(), rows)
        return self.sample(logits, rows)


class Sharding(Fusing):
    """Adds Gumbel noise by token id, so that it can sample from shards of the vocabulary."""

    def sample(self, logits, rows):
        return gumbel_sample(logits, rows)

    def sample_shard(self, logits, rows):
        scores, columns = gumbel_scores(logits, rows).max(-1)
        return scores, columns + rows.first_token_id

    def sample_shard_fused(self, logits, rows):
        logits = Temperature(self.vocab_size, self.device).apply(logits.clone(), rows)
        return self.sample_shard(logits, rows)


class TestSharding(FusedSamplerContract):
    step_class = Sharding
    capabilities = replace(ALL, is_vocab_parallel=True)
    active = ({"temperature": 1.0}, {"temperature": 0.6})
    neutral = MappingProxyType({"temperature": 0.0})
    fused = STEPS
    mixed = MIXED


class TestTorchGumbel(SamplerContract):
    step_class = TorchGumbel
    capabilities = SAMPLE
    active = ({"temperature": 1.0},)
    neutral = MappingProxyType({"temperature": 0.0})


class TestFusing(FusedSamplerContract):
    step_class = Fusing
    capabilities = ALL
    active = ({"temperature": 1.0},)
    neutral = MappingProxyType({"temperature": 0.0})
    fused = STEPS
    mixed = MIXED


def sampler_contract_of(step):
    return type("Contract", (TestTorchGumbel,), {"step_class": step})()


def fused_contract(step):
    return type("Contract", (TestFusing,), {"step_class": step})()


def sharding_contract(step):
    return type("Contract", (TestSharding,), {"step_class": step})()


class NeverNeutral(TorchGumbel):
    def is_neutral(self, fields):
        return False


class AlwaysNeutral(TorchGumbel):
    def is_neutral(self, fields):
        return True


def noise_of(rows, num_tokens):
    keys = row_keys(rows, PURPOSE_SAMPLE).unsqueeze(1)
    return gumbel_noise(keys, torch.arange(num_tokens))


class SamplesGreedyRows(TorchGumbel):
    def sample(self, logits, rows):
        return (logits + noise_of(rows, logits.shape[1])).argmax(-1)


class MistakesGreedyBatches(TorchGumbel):
    def sample(self, logits, rows):
        return logits.argmin(-1) if rows.all_greedy else super().sample(logits, rows)


class GreedyByTheFirstRow(TorchGumbel):
    def sample(self, logits, rows):
        is_greedy = rows.slot_fields["temperature"][rows.slots[0]] == 0
        sampled = (logits + noise_of(rows, logits.shape[1])).argmax(-1)
        return torch.where(is_greedy, logits.argmax(-1), sampled)


class UsesAGenerator(TorchGumbel):
    def sample(self, logits, rows):
        return torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def summed(rows, seed=1, child=100_003, position=1_000_000_007):
    """Return the rows with a weighted sum of the three as the seed, and zeros elsewhere."""
    seeds, children = (rows.slot_fields[name] for name in ("seed", "child"))
    keys = seeds * seed + children * child
    keys[rows.slots] += rows.positions * position
    slot_fields = rows.slot_fields | {"seed": keys, "child": torch.zeros_like(children)}
    return replace(rows, slot_fields=slot_fields, positions=torch.zeros_like(rows.positions))


def by_numbers(**weights):
    """Return a sampler whose randomness depends on a weighted sum of the three sources."""

    class Summed(TorchGumbel):
        def sample(self, logits, rows):
            return super().sample(logits, summed(rows, **weights))

    return Summed


class SamplesInPlace(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits.sub_(1.0), rows)


class OneRowPerSlot(TorchGumbel):
    """Samples all rows of a slot at the position of its last one."""

    def sample(self, logits, rows):
        positions = torch.zeros(len(rows.token_ids), dtype=torch.int64)
        positions[rows.slots] = rows.positions
        return super().sample(logits, replace(rows, positions=positions[rows.slots]))


class FoldsTheNoise(TorchGumbel):
    def sample(self, logits, rows):
        return (logits + noise_of(rows, logits.shape[1]).abs()).argmax(-1)


class IsSlightlySharper(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits * 1.1, rows)


class CountsInTens(TorchGumbel):
    """Has the same noise at ten positions."""

    def sample(self, logits, rows):
        return super().sample(logits, replace(rows, positions=rows.positions // 10))


class FusesSlightlySharper(Fusing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits * 1.1, rows)


class FusesOneRowPerSlot(Fusing):
    def sample_fused(self, logits, rows):
        positions = torch.zeros(len(rows.token_ids), dtype=torch.int64)
        positions[rows.slots] = rows.positions
        return super().sample_fused(logits, replace(rows, positions=positions[rows.slots]))


class LooksAtTheBatch(TorchGumbel):
    def sample(self, logits, rows):
        rows.slot_fields["seed"].add_(len(rows.slots))
        return super().sample(logits, rows)


class LooksAtTheSlot(TorchGumbel):
    def sample(self, logits, rows):
        rows.slot_fields["seed"][rows.slots] += rows.slots
        return super().sample(logits, rows)


class NeedsTheHost(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits, rows) if rows.host_fields else logits.argmax(-1)


class SamplesMaskedTokens(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits.nan_to_num(neginf=-1.0), rows)


class TakesTheMostLikely(TorchGumbel):
    def sample(self, logits, rows):
        return logits.argmax(-1)


class KeepsADimension(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits, rows).unsqueeze(1)


class GivesInt32(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits, rows).int()


class CountsFromOne(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits, rows) + self.vocab_size


class CountsBelowZero(TorchGumbel):
    def sample(self, logits, rows):
        return super().sample(logits, rows) - self.vocab_size


class Waits(TorchGumbel):
    def sample(self, logits, rows):
        if (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class WaitsWhereTheHostKnows(TorchGumbel):
    def sample(self, logits, rows):
        if rows.host_fields and (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class WaitsWhereTheHostKnowsNothing(TorchGumbel):
    def sample(self, logits, rows):
        if not rows.host_fields and (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class LeavesOutAStep(Fusing):
    steps = (Temperature, TopKTopP)


def fusing_by_numbers(**weights):
    """Return a sampler whose fused sampling depends on a weighted sum of the three sources."""

    class Summed(Fusing):
        def sample_fused(self, logits, rows):
            return super().sample_fused(logits, summed(rows, **weights))

    return Summed


def fusing_without(source):
    """Return a sampler that ignores one per-slot field in fused sampling only."""

    class Forgetful(Fusing):
        def sample_fused(self, logits, rows):
            slot_fields = rows.slot_fields | {source: torch.zeros_like(rows.slot_fields[source])}
            return super().sample_fused(logits, replace(rows, slot_fields=slot_fields))

    return Forgetful


class FusesAtOnePosition(Fusing):
    def sample_fused(self, logits, rows):
        positions = rows.positions[:1].expand(len(rows.positions))
        return super().sample_fused(logits, replace(rows, positions=positions))


class FusesByTheHost(Fusing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits, rows) if rows.host_fields else self.sample(logits, rows)


class ChangesTheLogits(Fusing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits.mul_(1.0).sub_(1.0), rows)


class SortsTheBatch(Fusing):
    """Applies the highest temperature to all rows."""

    def sample_fused(self, logits, rows):
        rows.slot_fields["temperature"].fill_(rows.slot_fields["temperature"].max())
        return super().sample_fused(logits, rows)


class LeavesPaddingOpen(Fusing):
    def sample_fused(self, logits, rows):
        sampled = super().sample_fused(logits, rows)
        return torch.where(rows.slots == rows.slots.max(), -1, sampled)


class IgnoresNaN(Fusing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits.nan_to_num(nan=-torch.inf), rows)


class FailsAllForOne(Fusing):
    def sample_fused(self, logits, rows):
        sampled = super().sample_fused(logits, rows)
        return torch.where(logits.isnan().any() & ~logits.isnan().any(-1), 0, sampled)


class GivesNoIdWithoutAToken(Fusing):
    def sample_fused(self, logits, rows):
        sampled = super().sample_fused(logits, rows)
        return torch.where((logits == -torch.inf).all(-1), -1, sampled)


class StopsAtARowWithoutAToken(Fusing):
    def sample_fused(self, logits, rows):
        sampled = super().sample_fused(logits, rows)
        return torch.where((logits == -torch.inf).all(-1).any(), 0, sampled)


class FusesAndWaits(Fusing):
    def sample_fused(self, logits, rows):
        if (rows.slot_fields["top_p"] >= 1).all():
            return self.sample(logits, rows)
        return super().sample_fused(logits, rows)


class CountsFromItsFirstColumn(Sharding):
    """Has the noise of the first tokens in every shard."""

    def sample_shard(self, logits, rows):
        scores, token_ids = super().sample_shard(logits, replace(rows, first_token_id=0))
        return scores, token_ids + rows.first_token_id


class ReturnsColumns(Sharding):
    def sample_shard(self, logits, rows):
        scores, token_ids = super().sample_shard(logits, rows)
        return scores, token_ids - rows.first_token_id


class TakesTheLastOfEqualOnes(Sharding):
    def sample_shard(self, logits, rows):
        scores = gumbel_scores(logits, rows)
        columns = logits.shape[1] - 1 - scores.flip(-1).argmax(-1)
        return scores.amax(-1), columns + rows.first_token_id


class ScoresByLogits(Sharding):
    """Compares shards by logits without noise."""

    def sample_shard(self, logits, rows):
        _, token_ids = super().sample_shard(logits, rows)
        columns = (token_ids - rows.first_token_id).unsqueeze(1)
        return logits.gather(1, columns).squeeze(1), token_ids


class HidesNaN(Sharding):
    def sample_shard(self, logits, rows):
        scores, token_ids = super().sample_shard(logits, rows)
        return scores.nan_to_num(nan=1e30, neginf=-1e30), token_ids


class ScoresInDouble(Sharding):
    def sample_shard(self, logits, rows):
        scores, token_ids = super().sample_shard(logits, rows)
        return scores.double(), token_ids


class ScoresPerToken(Sharding):
    def sample_shard(self, logits, rows):
        return gumbel_scores(logits, rows), super().sample_shard(logits, rows)[1]


class FusesWithoutTemperature(Sharding):
    def sample_shard_fused(self, logits, rows):
        return self.sample_shard(logits, rows)


class ChangesTheShard(Sharding):
    def sample_shard_fused(self, logits, rows):
        logits = Temperature(self.vocab_size, self.device).apply(logits, rows)
        return self.sample_shard(logits, rows)


class WaitsForShards(Sharding):
    def sample_shard(self, logits, rows):
        if (rows.field("temperature") == 0).all():
            return logits.max(-1)
        return super().sample_shard(logits, rows)


GREEDY = "neutral_rows_take_the_most_likely_token"
MATTERS = "seed_child_and_position_all_matter"
FUSED_MATTERS = "seed_child_and_position_all_matter_to_fused_sampling"
AFTER_STEPS = "it_samples_the_same_as_after_the_processors"
ALONE = "a_row_does_not_depend_on_the_others"
TOKEN = "one_token_a_row_comes_back"
SUMS = [  # weights that cancel one source, or the difference of two
    ({"seed": 0}, ("seeds",)),
    ({"child": 0}, ("children",)),
    ({"position": 0}, ("positions",)),
    ({"child": 1}, ("seeds", "children")),
    ({"position": 1}, ("seeds", "positions")),
    ({"child": 7, "position": 7}, ("children", "positions")),
]
ONE_SLOT, FREQUENCIES = (
    "rows_of_one_slot_have_their_own_positions",
    "tokens_occur_as_often_as_they_should",
)
PROOFS = [
    (SamplesInPlace, "sampling_does_not_change_the_logits", (), "must not change the logits"),
    (OneRowPerSlot, ONE_SLOT, (), "changes beside other rows of its slot"),
    (FoldsTheNoise, FREQUENCIES, ("seeds",), "other seeds each do not follow"),
    (IsSlightlySharper, FREQUENCIES, ("children",), "other children each do not follow"),
    (CountsInTens, FREQUENCIES, ("positions",), "other positions each do not follow"),
    *(
        (by_numbers(**weights), MATTERS, (lost,), f"other {' and '.join(lost)}, give only")
        for weights, lost in SUMS
    ),
    (NeverNeutral, "neutral_fields_are_called_neutral", (), "is_neutral must be true of"),
    (AlwaysNeutral, "neutral_fields_are_called_neutral", (), "is_neutral must be false of"),
    (SamplesGreedyRows, GREEDY, (False,), "all_greedy=False"),
    (MistakesGreedyBatches, GREEDY, (True,), "all_greedy=True"),
    (GreedyByTheFirstRow, "neutral_and_active_rows_share_a_batch", (), "beside random rows"),
    (
        UsesAGenerator,
        "the_same_seed_samples_the_same_token",
        (),
        "must have no state and no generator",
    ),
    (LooksAtTheBatch, ALONE, (), "alone in another slot"),
    (LooksAtTheSlot, ALONE, (), "alone in another slot"),
    (NeedsTheHost, "the_host_fields_are_only_a_hint", (), "if host_fields is empty"),
    (SamplesMaskedTokens, "masked_tokens_are_never_sampled", (), r"for tokens \[0\] only"),
    (TakesTheMostLikely, "masked_tokens_are_never_sampled", (), r"for tokens \[3, 17\] only"),
    (KeepsADimension, TOKEN, (), r"shape \(12,\), got \(12, 1\)"),
    (GivesInt32, TOKEN, (), "torch.int32"),
    (CountsFromOne, TOKEN, (), "must be from 0 to 49"),
    (CountsBelowZero, TOKEN, (), "must be from 0 to 49"),
]
FUSED_PROOFS = [
    (FusesOneRowPerSlot, f"{ONE_SLOT}_in_fused_sampling", "changes beside other rows of its slot"),
    (FusesSlightlySharper, f"fused_{FREQUENCIES}", "other seeds each do not follow"),
    (LeavesOutAStep, f"fused_{FREQUENCIES}", "whose probability is 0"),
    (LeavesOutAStep, AFTER_STEPS, "min_p"),
    (fusing_without("seed"), AFTER_STEPS, "same tokens as the separate steps"),
    (fusing_without("child"), AFTER_STEPS, "same tokens as the separate steps"),
    (FusesAtOnePosition, AFTER_STEPS, "same tokens as the separate steps"),
    (ChangesTheLogits, "fused_sampling_needs_nothing_from_the_host", "must not change the logits"),
    (FusesByTheHost, "fused_sampling_needs_nothing_from_the_host", "host_fields is empty"),
    (SortsTheBatch, "fused_sampling_treats_each_row_alone", "beside padding rows"),
    (LeavesPaddingOpen, "fused_sampling_treats_each_row_alone", "must be from 0 to 49"),
    (
        IgnoresNaN,
        "a_nan_logit_is_sampled_in_its_row_only",
        "must sample its token",
    ),
    (
        FailsAllForOne,
        "a_nan_logit_is_sampled_in_its_row_only",
        "changes the tokens of other rows",
    ),
    (GivesNoIdWithoutAToken, "a_row_without_a_token_still_gives_an_id", "must be from 0 to 49"),
    (
        StopsAtARowWithoutAToken,
        "a_row_without_a_token_still_gives_an_id",
        "changes the tokens of other rows",
    ),
]
SHARDS = "the_best_token_of_all_shards_is_that_of_whole_rows"
FUSED_SHARDS = "the_best_token_of_all_shards_is_that_of_fused_sampling"
SHARD_PROOFS = [
    (CountsFromItsFirstColumn, SHARDS, (False,), "must be those of whole rows"),
    (ReturnsColumns, SHARDS, (True,), "a shard of the tokens from"),
    (TakesTheLastOfEqualOnes, SHARDS, (True,), "must be those of whole rows"),
    (ScoresByLogits, SHARDS, (False,), "must be those of whole rows"),
    (HidesNaN, SHARDS, (True,), "a score must be finite, except"),
    (ScoresInDouble, SHARDS, (True,), "a shard must give torch.float32"),
    (ScoresPerToken, SHARDS, (True,), "scores and token ids of shape"),
    (FusesWithoutTemperature, FUSED_SHARDS, (), "must be those of whole rows"),
    (ChangesTheShard, FUSED_SHARDS, (), "must not change the logits"),
]
SHARD_WAITS = "sampling_from_shards_does_not_wait_for_the_device"
WAITS, FUSED_WAITS = "nothing_waits_for_the_device", "fused_sampling_does_not_wait_for_the_device"
PROBE = "the_probe_returns_a_reason_or_none"


@pytest.mark.parametrize(("step", "test", "arguments", "reason"), PROOFS)
def test_a_broken_sampler_is_rejected(step, test, arguments, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(sampler_contract_of(step), f"test_{test}")(*arguments)


@pytest.mark.parametrize(("step", "test", "reason"), FUSED_PROOFS)
def test_a_broken_fused_sampler_is_rejected(step, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(fused_contract(step), f"test_{test}")()


@pytest.mark.parametrize(("step", "test", "arguments", "reason"), SHARD_PROOFS)
def test_a_sampler_that_breaks_in_shards_is_rejected(step, test, arguments, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(sharding_contract(step), f"test_{test}")(*arguments)


def test_sampling_from_shards_that_waits_is_rejected():
    with pytest.raises(pytest.fail.Exception, match="would wait for the device"):
        getattr(sharding_contract(WaitsForShards), f"test_{SHARD_WAITS}")()


@pytest.mark.parametrize(
    ("test", "arguments"), [(SHARDS, (True,)), (FUSED_SHARDS, ()), (SHARD_WAITS, ())]
)
def test_a_sampler_that_needs_whole_rows_is_not_given_shards(test, arguments):
    with pytest.raises(pytest.skip.Exception, match="does not declare is_vocab_parallel"):
        getattr(TestFusing(), f"test_{test}")(*arguments)


@pytest.mark.parametrize("step", [Waits, WaitsWhereTheHostKnows, WaitsWhereTheHostKnowsNothing])
def test_a_sampler_that_waits_is_rejected(step):
    with pytest.raises(pytest.fail.Exception, match="would wait for the device"):
        getattr(sampler_contract_of(step), f"test_{WAITS}")()


@pytest.mark.parametrize(("weights", "lost"), SUMS)
def test_fused_sampling_without_a_source_of_randomness_is_rejected(weights, lost):
    contract = fused_contract(fusing_by_numbers(**weights))
    with pytest.raises(AssertionError, match=f"other {' and '.join(lost)}, give only"):
        getattr(contract, f"test_{FUSED_MATTERS}")(lost)


def test_fused_sampling_that_waits_is_rejected():
    with pytest.raises(pytest.fail.Exception, match="would wait for the device"):
        getattr(fused_contract(FusesAndWaits), f"test_{FUSED_WAITS}")()


def test_a_probe_that_imports_torch_fails():
    class WithTorch(SamplerContract):
        capabilities = replace(SAMPLE, probe="torch.cuda:is_available")

    with pytest.raises(AssertionError, match="a probe returns a reason or None"):
        getattr(WithTorch(), f"test_{PROBE}")()


def test_a_sampler_of_another_distribution_gives_its_probabilities():
    class Even(TorchGumbel):
        def sample(self, logits, rows):
            return super().sample(logits.masked_fill(logits.isfinite(), 0.0), rows)

    class TestEven(TestTorchGumbel):
        step_class = Even

        def probabilities(self, logits, fields):
            return logits.isfinite().float() / len(logits)

    TestEven().test_tokens_occur_as_often_as_they_should("seeds")
    with pytest.raises(AssertionError, match="do not follow the probabilities"):
        sampler_contract_of(Even).test_tokens_occur_as_often_as_they_should("seeds")


def test_without_counted_rows_no_frequencies_are_compared():
    contract = type(
        "Contract", (TestTorchGumbel,), {"step_class": FoldsTheNoise, "num_counted_rows": 0}
    )
    with pytest.raises(pytest.skip.Exception, match="num_counted_rows is 0"):
        contract().test_tokens_occur_as_often_as_they_should("seeds")


def test_each_test_of_the_kits_has_a_sampler_that_fails_it():
    tests = {name for name in dir(FusedSamplerContract) if name.startswith("test_")}
    proven = {proof[1] for proof in (*PROOFS, *FUSED_PROOFS, *SHARD_PROOFS)}
    proven |= {FUSED_MATTERS, WAITS, FUSED_WAITS, SHARD_WAITS, PROBE}
    assert tests == {f"test_{test}" for test in proven}
    assert {lost for _, lost in SUMS} == set(VARIED)


def test_a_sampler_that_fuses_nothing_raises():
    class Plain(Sampler):
        def is_neutral(self, fields):
            return True

        def sample(self, logits, rows):
            return logits.argmax(-1)

    with pytest.raises(NotImplementedError, match="Plain fuses no steps"):
        Plain(3, torch.device("cpu")).sample_fused(torch.ones(1, 3), sampled_rows(SAMPLE, [{}]))
    step = Plain(3, torch.device("cpu"))
    for sample in (step.sample_shard, step.sample_shard_fused):
        with pytest.raises(NotImplementedError, match="Plain samples from whole rows only"):
            sample(torch.ones(1, 3), sampled_rows(SAMPLE, [{}]))
