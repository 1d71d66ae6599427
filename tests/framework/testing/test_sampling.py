"""The conformance kits of sampler steps notice steps that are wrong."""

import pytest
import torch

from quire.interfaces.sampling import DrawStep, LogitsStep, RequestField, SamplerCapabilities
from quire.testing.sampling import DrawStepContract, LogitsStepContract
from quire_samplers.categorical import Categorical
from quire_samplers.plugin import TEMPERATURE

SHIFT = SamplerCapabilities(stage="bias", fields=(RequestField("shift", float, 0.0),))
DRAW = SamplerCapabilities(stage="draw", fields=(TEMPERATURE,))


class Shift(LogitsStep):
    """Adds `shift` to the even tokens."""

    def is_neutral(self, fields):
        return fields["shift"] == 0

    def apply(self, logits, rows):
        logits[:, ::2] += rows.field("shift")
        return logits


class ChangesNeutralRows(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) + 1e-3


class DoesNothing(Shift):
    def apply(self, logits, rows):
        return logits


class NeverNeutral(Shift):
    def is_neutral(self, fields):
        return False


class LooksAtTheBatch(Shift):
    def apply(self, logits, rows):
        logits[:, ::2] += rows.field("shift") * rows.field("shift").mean()
        return logits


class TakesSlotsForRows(Shift):
    def apply(self, logits, rows):
        logits[:, ::2] += rows.columns["shift"][: len(logits)].unsqueeze(1)
        return logits


class NeedsTheHost(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) if rows.host_fields else logits


class Unmasks(Shift):
    def apply(self, logits, rows):
        return super().apply(logits.nan_to_num(neginf=-50.0), rows)


class Waits(Shift):
    def apply(self, logits, rows):
        if rows.field("shift").max() > 0:
            return super().apply(logits, rows)
        return logits


class LosesARow(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows).double()


def logits_contract(broken):
    class Contract(LogitsStepContract):
        step_class = broken
        capabilities = SHIFT
        active = ({"shift": 1.0}, {"shift": -2.5})

    return Contract()


def test_a_right_step_passes():
    tests = [name for name in dir(LogitsStepContract) if name.startswith("test_")]
    for name in tests:
        getattr(logits_contract(Shift), name)()
    assert len(tests) == 8


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ChangesNeutralRows, "test_neutral_rows_are_left_as_they_are"),
        (DoesNothing, "test_active_rows_are_changed"),
        (NeverNeutral, "test_neutral_fields_are_called_neutral"),
        (LooksAtTheBatch, "test_a_row_does_not_depend_on_the_others"),
        (TakesSlotsForRows, "test_a_row_does_not_depend_on_the_others"),
        (NeedsTheHost, "test_the_host_fields_are_only_a_hint"),
        (Unmasks, "test_masked_tokens_stay_masked"),
        (LosesARow, "test_shape_and_type_stay"),
    ],
)
def test_a_wrong_step_is_noticed(broken, test):
    with pytest.raises(AssertionError):
        getattr(logits_contract(broken), test)()


def test_a_step_that_waits_is_noticed():
    with pytest.raises(pytest.fail.Exception, match="waits for the device"):
        logits_contract(Waits).test_nothing_waits_for_the_device()


class NeverGreedy(Categorical):
    def draw(self, logits, rows):
        return super().draw(logits / 100, rows).flip(0)


class SharedGenerator(DrawStep):
    def is_neutral(self, fields):
        return fields["temperature"] == 0

    def draw(self, logits, rows):
        return torch.multinomial(logits.softmax(-1), 1).squeeze(1)


class IgnoresThePosition(Categorical):
    def draw(self, logits, rows):
        rows.positions.fill_(1)
        return super().draw(logits, rows)


class DrawsMaskedTokens(Categorical):
    def draw(self, logits, rows):
        return super().draw(logits.nan_to_num(neginf=-1.0), rows)


class WaitsForTheDraw(Categorical):
    def draw(self, logits, rows):
        if (rows.field("temperature") == 0).all():
            return logits.argmax(-1)
        return super().draw(logits, rows)


def draw_contract(broken):
    class Contract(DrawStepContract):
        step_class = broken
        capabilities = DRAW
        active = ({"temperature": 1.0},)
        neutral = {"temperature": 0.0}  # noqa: RUF012

    return Contract()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (NeverGreedy, "test_neutral_and_active_rows_share_a_batch"),
        (SharedGenerator, "test_the_same_seed_draws_the_same_token"),
        (SharedGenerator, "test_a_row_does_not_depend_on_the_others"),
        (IgnoresThePosition, "test_seed_and_position_both_matter"),
        (DrawsMaskedTokens, "test_masked_tokens_are_never_drawn"),
    ],
)
def test_a_wrong_draw_is_noticed(broken, test):
    with pytest.raises(AssertionError):
        getattr(draw_contract(broken), test)()


def test_a_draw_that_waits_is_noticed():
    with pytest.raises(pytest.fail.Exception, match="waits for the device"):
        draw_contract(WaitsForTheDraw).test_nothing_waits_for_the_device()
