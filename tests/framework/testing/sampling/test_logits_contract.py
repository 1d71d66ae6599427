"""Logits-processor conformance kit: every check rejects a broken step, and right ones pass."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import LogitsProcessor, RequestField, SamplerCapabilities
from quire.testing.sampling.logits_contract import LogitsProcessorContract
from quire.testing.sampling.sampled_rows import History, sampled_rows

SHIFT = SamplerCapabilities(
    stage="bias", fields=(RequestField("shift", float, 0.0),), is_vocab_parallel=True
)
DRY = SamplerCapabilities(
    stage="penalty", fields=(RequestField("dry", float, 0.0, 0.0),), is_vocab_parallel=True
)
HISTORIES = (
    History((1, 2, 3, 9, 1, 2), num_prompt_tokens=3),  # 3 would repeat
    History((5, 6, 5, 6, 5), num_prompt_tokens=1),  # 6 would
    History((4,), num_prompt_tokens=1),
    History((7, 7, 8, 7, 7, 7), num_prompt_tokens=4),  # 7 and 8 would
)


class Shift(LogitsProcessor):
    """Adds `shift` to the even tokens."""

    def is_neutral(self, fields):
        return fields["shift"] == 0

    def apply(self, logits, rows):
        logits[:, rows.first_token_id % 2 :: 2] += rows.field("shift")
        return logits


class DontRepeat(LogitsProcessor):
    """Penalises tokens that followed an earlier occurrence of the last token (DRY, length 1)."""

    def is_neutral(self, fields):
        return fields["dry"] == 0

    def apply(self, logits, rows):
        tokens = self.tokens(rows)  # [N, L]
        before = torch.arange(tokens.shape[1], device=tokens.device) < rows.positions.unsqueeze(1)
        last = tokens.gather(1, rows.positions.unsqueeze(1) - 1)
        is_repeat = (tokens[:, :-1] == last) & before[:, 1:]  # [N, L - 1]
        penalties = logits.new_zeros(len(logits), self.vocab_size).scatter_reduce(
            1, tokens[:, 1:], is_repeat * rows.field("dry"), "amax"
        )
        return logits - penalties[:, rows.first_token_id :][:, : logits.shape[1]]

    def tokens(self, rows):
        return rows.token_ids[rows.slots].long()


def shift_contract(step):
    class Contract(LogitsProcessorContract):
        step_class = step
        capabilities = SHIFT
        active = ({"shift": 1.0}, {"shift": -2.5})

    return Contract()


def dry_contract(step):
    class Contract(LogitsProcessorContract):
        step_class = step
        capabilities = DRY
        active = ({"dry": 0.5}, {"dry": 2.0})
        histories = HISTORIES

    return Contract()


class TestShift(LogitsProcessorContract):
    step_class = Shift
    capabilities = SHIFT
    active = ({"shift": 1.0}, {"shift": -2.5})


class TestDontRepeat(LogitsProcessorContract):
    step_class = DontRepeat
    capabilities = DRY
    active = ({"dry": 0.5}, {"dry": 2.0})
    neutral = MappingProxyType({"dry": 0.0})
    histories = HISTORIES


class NeverNeutral(Shift):
    def is_neutral(self, fields):
        return False


class AlwaysNeutral(Shift):
    def is_neutral(self, fields):
        return True


class ChangesNeutralRows(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) + 1e-3


class DoesNothing(Shift):
    def apply(self, logits, rows):
        return logits


class LooksAtTheBatch(Shift):
    def apply(self, logits, rows):
        logits[:, ::2] += rows.field("shift") * rows.field("shift").max()
        return logits


class LooksAtTheSlot(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) + rows.slots.unsqueeze(1) * 1e-3


class SortsTheSlots(Shift):
    def apply(self, logits, rows):
        logits[:, ::2] += rows.slot_fields["shift"][rows.slots.sort().values].unsqueeze(1)
        return logits


class TakesSlotsForRows(Shift):
    """Handles one row per slot only."""

    def apply(self, logits, rows):
        bias = torch.zeros(len(rows.token_ids), device=logits.device)
        bias[rows.slots] = logits[:, 0] * rows.field("shift").squeeze(1)
        return logits + bias[rows.slots].unsqueeze(1)


class RemembersTheBatch(Shift):
    shifts = 0.0

    def apply(self, logits, rows):
        out = super().apply(logits, rows) + self.shifts
        self.shifts = self.shifts + rows.field("shift").mean()
        return out


class CountsFromItsFirstColumn(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, replace(rows, first_token_id=0))


class LooksAtOtherColumns(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) * (1 + logits.amax(-1, keepdim=True) / 100)


class UsesAGenerator(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) + torch.rand(1)


class NeedsTheHost(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows) if rows.host_fields else logits


class Unmasks(Shift):
    def apply(self, logits, rows):
        return super().apply(logits.nan_to_num(neginf=-50.0), rows)


class ScalesBySpread(Shift):
    """Divides by the spread of a row, which is NaN if a token is masked."""

    def apply(self, logits, rows):
        is_masked = logits == -torch.inf
        scaled = super().apply(logits / logits.std(-1, keepdim=True), rows)
        return scaled.masked_fill(is_masked, -torch.inf)


class DropsTheMostLikely(Shift):
    """Masks the most likely token, even if the grammar allows no other."""

    def apply(self, logits, rows):
        shifted = super().apply(logits, rows)
        return shifted.masked_fill(shifted == shifted.amax(-1, keepdim=True), -torch.inf)


class LosesTheRows(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows).squeeze(0)


class ComputesInDouble(Shift):
    def apply(self, logits, rows):
        return super().apply(logits, rows).double()


class Waits(Shift):
    def apply(self, logits, rows):
        if rows.field("shift").max() > 0:
            return super().apply(logits, rows)
        return logits


class WaitsWhereTheHostKnowsNothing(Shift):
    def apply(self, logits, rows):
        if rows.host_fields or rows.field("shift").max() > 0:
            return super().apply(logits, rows)
        return logits


class WaitsWhereTheHostKnows(Shift):
    def apply(self, logits, rows):
        if not rows.host_fields or rows.field("shift").max() > 0:
            return super().apply(logits, rows)
        return logits


class ReadsNoTokens(DontRepeat):
    def apply(self, logits, rows):
        logits[:, ::2] -= rows.field("dry")
        return logits


class ReadsStaleTokens(DontRepeat):
    """Looks for repetitions in the whole table, up to its end."""

    def apply(self, logits, rows):
        tokens = self.tokens(rows)
        last = tokens.gather(1, rows.positions.unsqueeze(1) - 1)
        seen = torch.zeros_like(logits).scatter_reduce(
            1, tokens[:, 1:], (tokens[:, :-1] == last) * rows.field("dry"), "amax"
        )
        return logits - seen


class ReadsTheTableByRow(DontRepeat):
    def tokens(self, rows):
        return rows.token_ids[: len(rows.slots)].long()


class ReadsTheLastRowOfASlot(DontRepeat):
    """Applies the change of a slot's last row to all its rows."""

    def apply(self, logits, rows):
        change = torch.zeros(len(rows.token_ids), logits.shape[1], device=logits.device)
        change[rows.slots] = super().apply(torch.zeros_like(logits), rows)
        return logits + change[rows.slots]


class CountsAllTokens(LogitsProcessor):
    """Punishes sampled tokens by the counts of the slot, whatever the position of the row."""

    def is_neutral(self, fields):
        return fields["dry"] == 0

    def apply(self, logits, rows):
        counts = rows.output_counts[rows.slots]
        return logits - counts * rows.field("dry")


class CountsByPosition(CountsAllTokens):
    def apply(self, logits, rows):
        every = torch.arange(self.vocab_size).expand(len(logits), -1)
        return logits - rows.counts_of(every) * rows.field("dry")


class TestCountsByPosition(LogitsProcessorContract):
    step_class = CountsByPosition
    capabilities = replace(DRY, reads_counts=True, is_vocab_parallel=False)
    active = ({"dry": 0.5}, {"dry": 2.0})
    histories = HISTORIES


SHARDS = "the_tokens_of_a_shard_get_the_logits_of_whole_rows"
PROOFS = [
    (NeverNeutral, "neutral_fields_are_called_neutral", "is_neutral must be true of"),
    (AlwaysNeutral, "neutral_fields_are_called_neutral", "is_neutral must be false of"),
    (ChangesNeutralRows, "neutral_rows_are_left_as_they_are", "neutral row 1 were changed"),
    (DoesNothing, "active_rows_are_changed", "changes no row"),
    (ReadsNoTokens, "given_histories_matter", "all histories give the same logits"),
    (ReadsStaleTokens, "only_tokens_before_the_position_are_read", "at or after a row's position"),
    (SortsTheSlots, "a_row_does_not_depend_on_the_others", "with the order of the rows"),
    (LooksAtTheBatch, "a_row_does_not_depend_on_the_others", "alone in another slot"),
    (LooksAtTheSlot, "a_row_does_not_depend_on_the_others", "alone in another slot"),
    (ReadsTheTableByRow, "a_row_does_not_depend_on_the_others", "the logits of row 0"),
    (TakesSlotsForRows, "rows_of_one_slot_have_their_own_positions", "other rows of the slot"),
    (
        ReadsTheLastRowOfASlot,
        "rows_of_one_slot_have_their_own_positions",
        "other rows of the slot",
    ),
    (RemembersTheBatch, "a_step_keeps_no_state_between_batches", "must have no state"),
    (UsesAGenerator, "a_step_keeps_no_state_between_batches", "no generator"),
    (NeedsTheHost, "the_host_fields_are_only_a_hint", "if host_fields is empty"),
    (
        CountsFromItsFirstColumn,
        SHARDS,
        "relative to rows.first_token_id",
    ),
    (
        LooksAtOtherColumns,
        SHARDS,
        "nothing from other columns",
    ),
    (Unmasks, "masked_tokens_stay_masked", "logits of -inf became finite"),
    (ScalesBySpread, "masked_tokens_stay_masked", "became NaN"),
    (DropsTheMostLikely, "masked_tokens_stay_masked", "no finite logit is left"),
    (LosesTheRows, "shape_and_type_stay", r"got \(50,\)"),
    (ComputesInDouble, "shape_and_type_stay", "must return float32, got torch.float64"),
]
WAITING = [Waits, WaitsWhereTheHostKnows, WaitsWhereTheHostKnowsNothing]
LAST = "nothing_waits_for_the_device"
PROBE = "the_probe_returns_a_reason_or_none"
STATES = "declared_states_are_tested"


@pytest.mark.parametrize(("step", "test", "reason"), PROOFS)
def test_a_broken_step_is_rejected(step, test, reason):
    contract = dry_contract if issubclass(step, DontRepeat) else shift_contract
    with pytest.raises(AssertionError, match=reason):
        getattr(contract(step), f"test_{test}")()


@pytest.mark.parametrize("step", WAITING)
def test_a_step_that_waits_is_rejected(step):
    with pytest.raises(pytest.fail.Exception, match="would wait for the device"):
        getattr(shift_contract(step), f"test_{LAST}")()


def test_a_step_that_counts_the_tokens_of_other_rows_is_rejected():
    contract = type("Contract", (TestCountsByPosition,), {"step_class": CountsAllTokens})()
    with pytest.raises(AssertionError, match=r"count them by rows\.counts_of"):
        contract.test_rows_of_one_slot_have_their_own_positions()


@pytest.mark.parametrize(
    ("capabilities", "states"),
    [(replace(SHIFT, is_vocab_parallel=False, states=("sum",)), ()), (SHIFT, ({"sum": 1.0},))],
)
def test_states_need_their_own_contract(capabilities, states):
    contract = shift_contract(Shift)
    type(contract).capabilities, type(contract).states = capabilities, states
    with pytest.raises(AssertionError, match="needs a StatefulLogitsProcessorContract"):
        getattr(contract, f"test_{STATES}")()


def test_a_step_that_needs_whole_rows_is_not_given_shards():
    class Contract(LogitsProcessorContract):
        step_class = LooksAtOtherColumns
        capabilities = replace(SHIFT, is_vocab_parallel=False)
        active = ({"shift": 1.0},)

    with pytest.raises(pytest.skip.Exception, match="does not declare is_vocab_parallel"):
        getattr(Contract(), f"test_{SHARDS}")()


def test_a_probe_that_imports_torch_fails():
    class WithTorch(LogitsProcessorContract):
        capabilities = replace(DRY, probe="torch.cuda:is_available")

    with pytest.raises(AssertionError, match="a probe returns a reason or None"):
        getattr(WithTorch(), f"test_{PROBE}")()


def test_each_test_of_the_kit_has_a_step_that_fails_it():
    tests = {name for name in dir(LogitsProcessorContract) if name.startswith("test_")}
    proven = {LAST, PROBE, STATES, *(test for _, test, _ in PROOFS)}
    assert tests == {f"test_{test}" for test in proven}


def test_a_step_reads_the_histories_of_the_test():
    rows = sampled_rows(DRY, [{"dry": 1.0}] * 4, histories=HISTORIES, slots=[5, 0, 2, 9])
    logits = DontRepeat(10, torch.device("cpu")).apply(torch.zeros(4, 10), rows)
    punished = [row.nonzero().flatten().tolist() for row in logits]
    assert punished == [[3], [6], [], [7, 8]]


def test_positions_follow_the_histories():
    rows = sampled_rows(DRY, [{}] * 4, histories=HISTORIES, slots=[3, 1, 2, 0], stale_token=49)
    assert rows.positions.tolist() == [6, 5, 1, 6]
    assert rows.num_prompt_tokens[rows.slots].tolist() == [3, 1, 1, 4]
    assert rows.token_ids[3, :8].tolist() == [1, 2, 3, 9, 1, 2, 49, 49]
    assert rows.token_ids[5].unique().tolist() == [49]


def test_a_long_history_has_room():
    rows = sampled_rows(DRY, [{}], histories=[History(range(40), num_prompt_tokens=40)])
    assert rows.token_ids[0, :40].tolist() == list(range(40))
    assert rows.positions.tolist() == [40]


def test_rows_have_the_given_values():
    rows = sampled_rows(
        SHIFT, [{"shift": 2.0}, {}], seeds=[7, -1], children=[0, 3], positions=[9, 4], slots=[4, 20]
    )
    assert rows.field("shift").tolist() == [[2.0], [0.0]]
    assert rows.slot_fields["seed"][rows.slots].tolist() == [7, -1]
    assert rows.slot_fields["child"][rows.slots].tolist() == [0, 3]
    assert rows.positions.tolist() == [9, 4]
    assert rows.host_fields == [{"shift": 2.0}, {"shift": 0.0}]


class Always(LogitsProcessor):
    """Adds 1 to the first token; which requests it is for, `logits_processors` tells."""

    def is_neutral(self, fields):
        return False

    def apply(self, logits, rows):
        logits[:, 0] += 1
        return logits


def always_contract(capabilities, neutral_fields=None):
    class Contract(LogitsProcessorContract):
        step_class = Always
        active = ({},)
        neutral = MappingProxyType(neutral_fields or {})

    Contract.capabilities = capabilities
    return Contract()


def test_a_step_that_requests_name_may_be_active_by_default():
    contract = always_contract(SamplerCapabilities(stage="bias", is_opt_in=True))
    contract.test_neutral_fields_are_called_neutral()
    contract.test_active_rows_are_changed()
    with pytest.raises(pytest.skip.Exception):
        contract.test_neutral_rows_are_left_as_they_are()


def test_a_step_that_always_runs_may_not():
    with pytest.raises(AssertionError, match="is_neutral must be true of the defaults"):
        always_contract(SHIFT).test_neutral_fields_are_called_neutral()


def test_neutral_fields_of_a_step_that_requests_name_are_tested():
    named = replace(SHIFT, is_opt_in=True)
    with pytest.raises(AssertionError, match="is_neutral must be true of"):
        always_contract(named, {"shift": 0.0}).test_neutral_fields_are_called_neutral()


COMPARED = SamplerCapabilities(
    stage="penalty",
    fields=(
        RequestField("scale", float, 0.0),
        RequestField("other", CompanionPrompt("scale"), ""),
    ),
)


class Compares(LogitsProcessor):
    """Takes away a part of the logits of each row's companion."""

    def is_neutral(self, fields):
        return fields["scale"] == 0

    def apply(self, logits, rows):
        scale, own = rows.field("scale")[rows.guided], logits[rows.guided]
        changed = own - scale * logits[rows.companions].clamp(min=-9)
        return logits.index_copy(0, rows.guided, own.where(scale == 0, changed))


class ComparesWithTheNextRow(Compares):
    def apply(self, logits, rows):
        return super().apply(logits, replace(rows, companions=rows.companions.roll(1)))


class ChangesCompanions(Compares):
    def apply(self, logits, rows):
        return super().apply(logits, rows) + 1.0


def compared_contract(step):
    return type(
        "Contract",
        (LogitsProcessorContract,),
        {"step_class": step, "capabilities": COMPARED, "active": ({"scale": 0.5},)},
    )()


class TestCompares(LogitsProcessorContract):
    step_class = Compares
    capabilities = COMPARED
    active = ({"scale": 0.5}, {"scale": 2.0})


@pytest.mark.parametrize(
    ("step", "test", "reason"),
    [
        (ComparesWithTheNextRow, "test_a_row_does_not_depend_on_the_others", "depends|differ|row"),
        (ChangesCompanions, "test_active_rows_are_changed", "companions were changed"),
    ],
)
def test_a_step_that_mistakes_companions_is_rejected(step, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(compared_contract(step), test)()
