"""The kit of draws: a right one passes, and each fault is seen where it should be."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from quire.interfaces.sampling import Sampler, SamplerCapabilities
from quire.testing.sampling.sampled_rows import sampled_rows
from quire.testing.sampling.sampler_contract import VARIED, FusedSamplerContract, SamplerContract
from quire_samplers.categorical import Categorical, by_cumulative
from quire_samplers.min_p import MinP
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P
from quire_samplers.temperature import Temperature
from quire_samplers.top_k_top_p import TopKTopP
from quire_samplers.uniform import PURPOSE_SAMPLE, uniform

DRAW = SamplerCapabilities(stage="sample", fields=(TEMPERATURE,))
ALL = SamplerCapabilities(stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P))
STEPS = (Temperature, MinP, TopKTopP)
MIXED = ({"top_k": 2}, {"temperature": 1.5, "min_p": 0.9}, {"temperature": 3.0, "top_p": 0.4})


class Absorbing(Categorical):
    """Takes the steps one by one."""

    steps = STEPS

    def sample_fused(self, logits, rows):
        for step in self.steps:
            logits = step(self.vocab_size, self.device).apply(logits.clone(), rows)
        return self.sample(logits, rows)


class TestCategorical(SamplerContract):
    step_class = Categorical
    capabilities = DRAW
    active = ({"temperature": 1.0},)
    neutral = MappingProxyType({"temperature": 0.0})


class TestAbsorbing(FusedSamplerContract):
    step_class = Absorbing
    capabilities = ALL
    active = ({"temperature": 1.0},)
    neutral = MappingProxyType({"temperature": 0.0})
    fused = STEPS
    mixed = MIXED


def draw_contract(step):
    return type("Contract", (TestCategorical,), {"step_class": step})()


def absorbing_contract(step):
    return type("Contract", (TestAbsorbing,), {"step_class": step})()


class NeverNeutral(Categorical):
    def is_neutral(self, fields):
        return False


class AlwaysNeutral(Categorical):
    def is_neutral(self, fields):
        return True


class DrawsGreedyRows(Categorical):
    def sample(self, logits, rows):
        return by_cumulative(logits.softmax(-1), uniform(rows, PURPOSE_SAMPLE))


class MistakesGreedyBatches(Categorical):
    def sample(self, logits, rows):
        return logits.argmin(-1) if rows.all_greedy else super().sample(logits, rows)


class GreedyByTheFirstRow(Categorical):
    def sample(self, logits, rows):
        is_greedy = rows.columns["temperature"][rows.slots[0]] == 0
        drawn = by_cumulative(logits.softmax(-1), uniform(rows, PURPOSE_SAMPLE))
        return torch.where(is_greedy, logits.argmax(-1), drawn)


class UsesAGenerator(Categorical):
    def sample(self, logits, rows):
        return torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def summed(rows, seed=1, child=100_003, position=1_000_000_007):
    """Return the rows with a weighted sum of the three as the seed, and zeros elsewhere."""
    seeds, children = (rows.columns[name] for name in ("seed", "child"))
    keys = seeds * seed + children * child
    keys[rows.slots] += rows.positions * position
    columns = rows.columns | {"seed": keys, "child": torch.zeros_like(children)}
    return replace(rows, columns=columns, positions=torch.zeros_like(rows.positions))


def by_numbers(**weights):
    """A draw whose randomness goes by a weighted sum of the three."""

    class Summed(Categorical):
        def sample(self, logits, rows):
            return super().sample(logits, summed(rows, **weights))

    return Summed


class LooksAtTheBatch(Categorical):
    def sample(self, logits, rows):
        rows.columns["seed"].add_(len(rows.slots))
        return super().sample(logits, rows)


class LooksAtTheSlot(Categorical):
    def sample(self, logits, rows):
        rows.columns["seed"][rows.slots] += rows.slots
        return super().sample(logits, rows)


class NeedsTheHost(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits, rows) if rows.host_fields else logits.argmax(-1)


class DrawsMaskedTokens(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits.nan_to_num(neginf=-1.0), rows)


class TakesTheLikeliest(Categorical):
    def sample(self, logits, rows):
        return logits.argmax(-1)


class KeepsADimension(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits, rows).unsqueeze(1)


class GivesInt32(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits, rows).int()


class CountsFromOne(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits, rows) + self.vocab_size


class CountsBelowZero(Categorical):
    def sample(self, logits, rows):
        return super().sample(logits, rows) - self.vocab_size


class Waits(Categorical):
    def sample(self, logits, rows):
        if (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class WaitsWhereTheHostKnows(Categorical):
    def sample(self, logits, rows):
        if rows.host_fields and (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class WaitsWhereTheHostKnowsNothing(Categorical):
    def sample(self, logits, rows):
        if not rows.host_fields and (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().sample(logits, rows)


class LeavesOutAStep(Absorbing):
    steps = (Temperature, TopKTopP)


def absorbing_by_numbers(**weights):
    """A draw whose randomness goes by a weighted sum of the three where it absorbs, only there."""

    class Summed(Absorbing):
        def sample_fused(self, logits, rows):
            return super().sample_fused(logits, summed(rows, **weights))

    return Summed


def absorbing_without(source):
    """A draw that forgets one column of its rows where it absorbs, and is right otherwise."""

    class Forgetful(Absorbing):
        def sample_fused(self, logits, rows):
            columns = rows.columns | {source: torch.zeros_like(rows.columns[source])}
            return super().sample_fused(logits, replace(rows, columns=columns))

    return Forgetful


class AbsorbsAtOnePosition(Absorbing):
    def sample_fused(self, logits, rows):
        positions = rows.positions[:1].expand(len(rows.positions))
        return super().sample_fused(logits, replace(rows, positions=positions))


class AbsorbsByTheHost(Absorbing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits, rows) if rows.host_fields else self.sample(logits, rows)


class ChangesTheLogits(Absorbing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits.mul_(1.0).sub_(1.0), rows)


class SortsTheBatch(Absorbing):
    """The hottest row decides for all."""

    def sample_fused(self, logits, rows):
        rows.columns["temperature"].fill_(rows.columns["temperature"].max())
        return super().sample_fused(logits, rows)


class LeavesPaddingOpen(Absorbing):
    def sample_fused(self, logits, rows):
        drawn = super().sample_fused(logits, rows)
        return torch.where(rows.slots == rows.slots.max(), -1, drawn)


class PassesOverWhatIsNoNumber(Absorbing):
    def sample_fused(self, logits, rows):
        return super().sample_fused(logits.nan_to_num(nan=-torch.inf), rows)


class FailsAllForOne(Absorbing):
    def sample_fused(self, logits, rows):
        drawn = super().sample_fused(logits, rows)
        return torch.where(logits.isnan().any() & ~logits.isnan().any(-1), 0, drawn)


class GivesNoIdWithoutAToken(Absorbing):
    def sample_fused(self, logits, rows):
        drawn = super().sample_fused(logits, rows)
        return torch.where((logits == -torch.inf).all(-1), -1, drawn)


class StopsAtARowWithoutAToken(Absorbing):
    def sample_fused(self, logits, rows):
        drawn = super().sample_fused(logits, rows)
        return torch.where((logits == -torch.inf).all(-1).any(), 0, drawn)


class AbsorbsAndWaits(Absorbing):
    def sample_fused(self, logits, rows):
        if (rows.columns["top_p"] >= 1).all():
            return self.sample(logits, rows)
        return super().sample_fused(logits, rows)


GREEDY = "neutral_rows_take_the_likeliest_token"
MATTERS = "seed_child_and_position_all_matter"
ABSORBING_MATTERS = "seed_child_and_position_all_matter_to_absorbing"
AFTER_STEPS = "it_draws_what_it_would_draw_after_the_steps"
ALONE = "a_row_does_not_depend_on_the_others"
TOKEN = "one_token_a_row_comes_back"
SUMS = [  # of which nothing is left of one source, or of the difference of two
    ({"seed": 0}, ("seeds",)),
    ({"child": 0}, ("children",)),
    ({"position": 0}, ("positions",)),
    ({"child": 1}, ("seeds", "children")),
    ({"position": 1}, ("seeds", "positions")),
    ({"child": 7, "position": 7}, ("children", "positions")),
]
PROOFS = [
    *(
        (by_numbers(**weights), MATTERS, (lost,), f"other {' and '.join(lost)} each")
        for weights, lost in SUMS
    ),
    (NeverNeutral, "neutral_fields_are_called_neutral", (), "does not take the likeliest"),
    (AlwaysNeutral, "neutral_fields_are_called_neutral", (), "is_neutral is true of"),
    (DrawsGreedyRows, GREEDY, (False,), "all_greedy=False"),
    (MistakesGreedyBatches, GREEDY, (True,), "all_greedy=True"),
    (GreedyByTheFirstRow, "neutral_and_active_rows_share_a_batch", (), "beside random rows"),
    (UsesAGenerator, "the_same_seed_draws_the_same_token", (), "a state or a generator"),
    (LooksAtTheBatch, ALONE, (), "alone in another slot"),
    (LooksAtTheSlot, ALONE, (), "alone in another slot"),
    (NeedsTheHost, "the_host_fields_are_only_a_hint", (), "host_fields is empty"),
    (DrawsMaskedTokens, "masked_tokens_are_never_drawn", (), r"of the tokens \[0\]"),
    (TakesTheLikeliest, "masked_tokens_are_never_drawn", (), r"of the tokens \[3, 17\]"),
    (KeepsADimension, TOKEN, (), r"12 rows give the shape \(12, 1\)"),
    (GivesInt32, TOKEN, (), "torch.int32"),
    (CountsFromOne, TOKEN, (), "not all token ids"),
    (CountsBelowZero, TOKEN, (), "not all token ids"),
]
ABSORBING_PROOFS = [
    (LeavesOutAStep, AFTER_STEPS, "min_p"),
    (absorbing_without("seed"), AFTER_STEPS, "other tokens than after the steps"),
    (absorbing_without("child"), AFTER_STEPS, "other tokens than after the steps"),
    (AbsorbsAtOnePosition, AFTER_STEPS, "other tokens than after the steps"),
    (ChangesTheLogits, "absorbing_needs_nothing_from_the_host", "changed the logits"),
    (AbsorbsByTheHost, "absorbing_needs_nothing_from_the_host", "host_fields is empty"),
    (SortsTheBatch, "absorbing_treats_each_row_alone", "beside rows of padding"),
    (LeavesPaddingOpen, "absorbing_treats_each_row_alone", "not all token ids"),
    (
        PassesOverWhatIsNoNumber,
        "a_logit_that_is_not_a_number_is_drawn_in_its_row_only",
        "not its token",
    ),
    (
        FailsAllForOne,
        "a_logit_that_is_not_a_number_is_drawn_in_its_row_only",
        "changes what other rows draw",
    ),
    (GivesNoIdWithoutAToken, "a_row_without_a_token_still_gives_an_id", "not all token ids"),
    (StopsAtARowWithoutAToken, "a_row_without_a_token_still_gives_an_id", "what other rows draw"),
]
WAITS, ABSORBING_WAITS = "nothing_waits_for_the_device", "absorbing_does_not_wait_for_the_device"


@pytest.mark.parametrize(("step", "test", "arguments", "reason"), PROOFS)
def test_a_wrong_draw_is_seen(step, test, arguments, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(draw_contract(step), f"test_{test}")(*arguments)


@pytest.mark.parametrize(("step", "test", "reason"), ABSORBING_PROOFS)
def test_a_draw_that_absorbs_wrongly_is_seen(step, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(absorbing_contract(step), f"test_{test}")()


@pytest.mark.parametrize("step", [Waits, WaitsWhereTheHostKnows, WaitsWhereTheHostKnowsNothing])
def test_a_draw_that_waits_is_seen(step):
    with pytest.raises(pytest.fail.Exception, match="waits for the device"):
        getattr(draw_contract(step), f"test_{WAITS}")()


@pytest.mark.parametrize(("weights", "lost"), SUMS)
def test_a_draw_that_absorbs_without_a_source_of_randomness_is_seen(weights, lost):
    contract = absorbing_contract(absorbing_by_numbers(**weights))
    with pytest.raises(AssertionError, match=f"other {' and '.join(lost)} each"):
        getattr(contract, f"test_{ABSORBING_MATTERS}")(lost)


def test_a_draw_that_waits_while_it_absorbs_is_seen():
    with pytest.raises(pytest.fail.Exception, match="waits for the device"):
        getattr(absorbing_contract(AbsorbsAndWaits), f"test_{ABSORBING_WAITS}")()


def test_each_test_of_the_kits_has_a_draw_that_fails_it():
    tests = {name for name in dir(FusedSamplerContract) if name.startswith("test_")}
    proven = {proof[1] for proof in (*PROOFS, *ABSORBING_PROOFS)}
    proven |= {ABSORBING_MATTERS, WAITS, ABSORBING_WAITS}
    assert tests == {f"test_{test}" for test in proven}
    assert {lost for _, lost in SUMS} == set(VARIED)


def test_a_draw_that_absorbs_nothing_says_so():
    class Plain(Sampler):
        def is_neutral(self, fields):
            return True

        def sample(self, logits, rows):
            return logits.argmax(-1)

    with pytest.raises(NotImplementedError, match="Plain absorbs no steps"):
        Plain(3, torch.device("cpu")).sample_fused(torch.ones(1, 3), sampled_rows(DRAW, [{}]))
