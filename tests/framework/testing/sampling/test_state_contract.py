"""Conformance kit of steps with state: every check rejects a broken step, and right ones pass."""

import random

import pytest
import torch

from quire.interfaces.sampling import LogitsProcessor, RequestField, SamplerCapabilities
from quire.testing.sampling import LogitsProcessorContract, StatefulLogitsProcessorContract

FADING = SamplerCapabilities(
    stage="bias",
    fields=(RequestField("fading", float, 0.0),),
    states=("evens", "odds"),
)


class Fading(LogitsProcessor):
    """Lowers even and odd tokens by fading numbers of those that were sampled."""

    def is_neutral(self, fields):
        return fields["fading"] == 0

    def initial_state(self, fields):
        return [0.0, fields["fading"]]

    def apply(self, logits, rows):
        logits[:, ::2] -= rows.field("fading") * rows.field("evens")
        logits[:, 1::2] -= rows.field("fading") * rows.field("odds")
        return logits

    def observe(self, logits, rows, token_ids):
        before = torch.cat((rows.field("evens"), rows.field("odds")), 1)
        is_odd = token_ids[:, None] % 2
        return before * 0.9 + torch.cat((1 - is_odd, is_odd), 1)


class TestFading(StatefulLogitsProcessorContract):
    step_class = Fading
    capabilities = FADING
    active = ({"fading": 1.0}, {"fading": -0.5})
    states = (
        {"evens": 0.0, "odds": 0.0},
        {"evens": 2.0, "odds": 0.5},
        {"evens": 0.0, "odds": 3.0},
    )


class LacksAState(Fading):
    def initial_state(self, fields):
        return [0.0]


class BeginsAtInfinity(Fading):
    def initial_state(self, fields):
        return [0.0, 1e39]


class BeginsAtRandom(Fading):
    def initial_state(self, fields):
        return [0.0, random.random()]


class IgnoresTheState(Fading):
    def apply(self, logits, rows):
        return logits + rows.field("fading")


class KeepsTheState(Fading):
    def observe(self, logits, rows, token_ids):
        return torch.cat((rows.field("evens"), rows.field("odds")), 1)


class ReturnsOneState(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids)[:, :1]


class ReturnsDouble(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids).double()


class Divides(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids) / rows.field("evens")


class LooksAtTheBatch(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids) + token_ids.float().mean()


class LooksAtTheSlot(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids) + rows.slots[:, None]


class CountsByItself(Fading):
    count = 0

    def observe(self, logits, rows, token_ids):
        self.count += 1
        return super().observe(logits, rows, token_ids) + self.count


class WritesInApply(Fading):
    def apply(self, logits, rows):
        rows.slot_fields["evens"][rows.slots] += 1
        return super().apply(logits, rows)


class WritesInObserve(Fading):
    def observe(self, logits, rows, token_ids):
        found = super().observe(logits, rows, token_ids)
        rows.slot_fields["odds"][rows.slots] = found[:, 1]
        return found


class ObservesInPlace(Fading):
    def observe(self, logits, rows, token_ids):
        logits.sub_(1.0)
        return super().observe(logits, rows, token_ids)


class ChangesTheTokens(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids.remainder_(2))


class NeedsTheHost(Fading):
    def observe(self, logits, rows, token_ids):
        return super().observe(logits, rows, token_ids) + len(rows.host_fields)


class TakesOddsOfTheToken(Fading):
    def observe(self, logits, rows, token_ids):
        probs = logits.softmax(-1).gather(1, token_ids[:, None])
        return super().observe(logits, rows, token_ids) + probs / (1 - probs)


class Waits(Fading):
    def observe(self, logits, rows, token_ids):
        if (token_ids % 2).all():
            return super().observe(logits, rows, token_ids) + 1
        return super().observe(logits, rows, token_ids)


INITIAL = "the_initial_state_is_one_number_for_each_name"
CHANGES = "tokens_change_the_state"
OTHERS = "the_state_of_a_row_does_not_depend_on_the_others"
WRITES = "only_the_engine_writes_states"
PROOFS = [
    (LacksAState, INITIAL, "a number for each of evens, odds"),
    (BeginsAtInfinity, INITIAL, "finite as float32"),
    (BeginsAtRandom, INITIAL, "differs from the first"),
    (IgnoresTheState, "given_states_matter", "give the same logits"),
    (KeepsTheState, CHANGES, "no token changes the state"),
    (ReturnsOneState, CHANGES, r"must return shape \(12, 2\), got \(12, 1\)"),
    (ReturnsDouble, CHANGES, "must return float32, got torch.float64"),
    (Divides, CHANGES, "becomes infinite or NaN"),
    (LooksAtTheBatch, OTHERS, "the next state of row 0"),
    (LooksAtTheSlot, OTHERS, "alone in another slot"),
    (CountsByItself, "the_state_is_not_in_the_step", "read its state from the rows only"),
    (WritesInApply, WRITES, "writes to the state evens"),
    (WritesInObserve, WRITES, "writes to the state odds"),
    (ObservesInPlace, WRITES, "must not change the logits"),
    (ChangesTheTokens, WRITES, "must not change the token ids"),
    (NeedsTheHost, "the_host_fields_are_only_a_hint_to_the_state", "if host_fields is empty"),
    (TakesOddsOfTheToken, "the_state_stays_finite_if_one_token_is_left", "only one token is left"),
]
WAITS = "observing_does_not_wait_for_the_device"


@pytest.mark.parametrize(("step", "test", "reason"), PROOFS)
def test_a_broken_step_is_rejected(step, test, reason):
    contract = type("Contract", (TestFading,), {"step_class": step})()
    with pytest.raises(AssertionError, match=reason):
        getattr(contract, f"test_{test}")()


def test_a_step_that_waits_is_rejected():
    contract = type("Contract", (TestFading,), {"step_class": Waits})()
    with pytest.raises(pytest.fail.Exception, match="would wait for the device"):
        getattr(contract, f"test_{WAITS}")()


def test_each_test_of_the_kit_has_a_step_that_fails_it():
    own = set(dir(StatefulLogitsProcessorContract)) - set(dir(LogitsProcessorContract))
    tests = {name for name in own if name.startswith("test_")}
    assert tests == {f"test_{test}" for test in (WAITS, *(test for _, test, _ in PROOFS))}
