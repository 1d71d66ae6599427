"""Contract of logits processors, independent of what they compute.

Write a test class for your logits processor; pytest collects the inherited tests:

    class TestMine(LogitsProcessorContract):
        step_class = MyProcessor
        capabilities = MY_CAPABILITIES
        active = ({"my_field": 0.5}, {"my_field": 2.0})

A logits processor with a `CompanionPrompt` gets rows with companions.

One that reads the tokens of a request needs histories:

        histories = (History((1, 2, 3, 1, 2), num_prompt_tokens=3), History((7,), 1))

The kit does not test what your logits processor computes: compare it with a plain implementation in
tests of your own, on rows of `quire.testing.sampling.sampled_rows`. To run Triton kernels on a GPU
set `device = "cuda"`; without one they run in Triton's interpreter. Samplers have a contract of
their own, `quire.testing.sampling.SamplerContract`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows, SamplerCapabilities
from quire.testing.probes import check_probe
from quire.testing.sampling.companion_step import BesideCompanions, has_companions
from quire.testing.sampling.no_waiting import (
    META,
    run_without_data,
    run_without_sync,
    skip_without_device,
)
from quire.testing.sampling.sampled_rows import (
    ANY_HISTORY,
    NUM_SLOTS,
    History,
    random_logits,
    sampled_rows,
    shard_of,
    vocabulary_splits,
)

NUM_ROWS = 12  # even, so that two alternating examples swap rows in reverse order
MAX_ROWS_PER_SLOT = 4  # a token and three drafts; of two slots, at most NUM_ROWS


class LogitsProcessorContract:
    """Tests that a logits processor must pass.

    Attributes:
        step_class: Logits processor under test.
        capabilities: Capabilities that it is registered with.
        active: Examples of request fields with which it changes logits.
        neutral: Request fields with which it changes nothing; if empty, the defaults. A step that
            declares `is_opt_in` may have none: then no neutral rows are tested.
        histories: Known tokens of requests, for a logits processor that reads them; the rows of a
            batch take them in turn. They must give different logits with each `active` example.
        states: States of the rows, if the step carries some; see
            `quire.testing.sampling.StatefulLogitsProcessorContract`, which it needs then.
        vocab_size: Size of the vocabulary in these tests, V.
        device: Device of the logits.
    """

    step_class: ClassVar[type[LogitsProcessor]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]] = {}
    histories: ClassVar[Sequence[History]] = ()
    states: ClassVar[Sequence[Mapping[str, float]]] = ()
    tests_states: ClassVar[bool] = False
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    def test_the_probe_returns_a_reason_or_none(self) -> None:
        """It is called in a fresh process, and must not import torch."""
        check_probe(self.capabilities.probe)

    def test_declared_states_are_tested(self) -> None:
        """A step that carries state has a contract with examples of it."""
        assert self.tests_states == bool(self.capabilities.states) == bool(self.states), (
            "a step that declares states needs a StatefulLogitsProcessorContract with examples of "
            "them in `states`, and no other step does"
        )

    def test_neutral_fields_are_called_neutral(self) -> None:
        """`is_neutral` is true of the neutral fields and false of the active examples."""
        step = self._step()
        assert not self._has_neutral() or step.is_neutral(self._full(self.neutral)), (
            f"is_neutral must be true of {self.neutral or 'the defaults'}"
        )
        for fields in self.active:
            assert not step.is_neutral(self._full(fields)), f"is_neutral must be false of {fields}"

    def test_neutral_rows_are_left_as_they_are(self) -> None:
        """Neutral rows keep their logits, also beside active rows."""
        if not self._has_neutral():
            pytest.skip("requests that do not name the step have no rows in it")
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        out = self._apply(logits, fields)
        for row in range(1, NUM_ROWS, 2):
            assert torch.equal(out[row], logits[row]), (
                f"the logits of neutral row {row} were changed"
            )

    def test_active_rows_are_changed(self) -> None:
        """Each active example changes logits; otherwise it would test nothing."""
        logits = self._logits()
        for fields in self.active:
            out = self._apply(logits, [fields] * NUM_ROWS)
            assert not torch.equal(out, logits), f"the active example {fields} changes no row"

    def test_given_histories_matter(self) -> None:
        """Rows that differ only in their histories get different logits."""
        logits = self._logits()[:1].repeat(NUM_ROWS, 1)
        for fields in self.active if self.histories else ():
            out = self._apply(logits, [fields] * NUM_ROWS)
            assert not torch.equal(out, out[:1].expand_as(out)), (
                f"with {fields} all histories give the same logits: choose histories that differ "
                "for the step, or none if it reads no tokens"
            )

    def test_only_tokens_before_the_position_are_read(self) -> None:
        """Entries at and after the position are stale: an earlier request, or a rejected draft."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        first, second = (
            self._apply(logits, fields, stale_token=token) for token in (0, self.vocab_size - 1)
        )
        assert torch.equal(first, second), (
            "the step reads stale tokens, at or after a row's position"
        )

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Compare rows in another order, alone, and in other slots."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        together = self._apply(logits, fields)
        backwards = list(reversed(range(NUM_ROWS)))
        reordered = self._rows(
            [fields[row] for row in backwards], backwards, slots=backwards, seeds=backwards
        )
        out = self._step().apply(logits[backwards], reordered)
        for row in range(NUM_ROWS):
            assert torch.equal(together[row], out[backwards.index(row)]), (
                f"the logits of row {row} change with the order of the rows"
            )
            alone = self._rows([fields[row]], [row], slots=[NUM_SLOTS - 1 - row], seeds=[row])
            (found,) = self._step().apply(logits[row : row + 1].clone(), alone)
            assert torch.equal(together[row], found), (
                f"the logits of row {row} in a batch differ from those alone in another slot"
            )

    def test_rows_of_one_slot_have_their_own_positions(self) -> None:
        """Each of k rows of a request is as if only the tokens before it were known.

        The rows have consecutive positions, as in the verification of draft tokens, and those of
        another request are among them.
        """
        longest, other = self._longest_histories()
        start = max(longest.num_prompt_tokens, len(longest.token_ids) + 1 - MAX_ROWS_PER_SLOT)
        positions = range(start, len(longest.token_ids) + 1)
        num_rows = 2 * len(positions)
        for fields in self.active:
            both = self._rows(
                [fields] * num_rows, [0] * num_rows, slots=[5, 9] * len(positions),
                histories=[longest, other] * len(positions), seeds=[3, 4] * len(positions),
                positions=[at for own in positions for at in (own, len(other.token_ids))],
            )  # fmt: skip
            logits = self._logits()[:num_rows]
            together = self._step().apply(logits.clone(), both)
            for row, position in zip(range(0, num_rows, 2), positions, strict=True):
                known = replace(longest, token_ids=longest.token_ids[:position])
                alone = self._rows([fields], [0], histories=[known], seeds=[3])
                (found,) = self._step().apply(logits[row : row + 1].clone(), alone)
                assert torch.equal(together[row], found), (
                    f"with {fields} the logits at position {position} change beside other rows of "
                    "the slot: read the tokens before each row's own position, and count them by "
                    "rows.counts_of"
                )

    def test_a_step_keeps_no_state_between_batches(self) -> None:
        """Apply the same batch twice, with another between."""
        step, logits = self._step(), self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        rows, others = self._rows(fields), self._rows([self._active(1)] * NUM_ROWS)
        before = step.apply(logits.clone(), rows)
        step.apply(-logits, others)
        assert torch.equal(step.apply(logits.clone(), rows), before), (
            "the same batch gives other logits the second time: a step must have no state and no "
            "generator"
        )

    def test_the_host_fields_are_only_a_hint(self) -> None:
        """Compare the logits with and without `host_fields`."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        known = self._apply(logits, fields)
        assert torch.equal(known, self._apply(logits, fields, is_known_to_host=False)), (
            "the logits differ if host_fields is empty"
        )

    def test_the_tokens_of_a_shard_get_the_logits_of_whole_rows(self) -> None:
        """A step that declares `is_vocab_parallel` changes each shard as it changes the whole."""
        if not self.capabilities.is_vocab_parallel:
            pytest.skip("the step does not declare is_vocab_parallel")
        logits = self._logits()
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        whole = self._step().apply(logits.clone(), rows)
        for split in vocabulary_splits(self.vocab_size):
            for token_ids in split:
                found = self._step().apply(*shard_of(logits, rows, token_ids))
                assert torch.equal(found, shard_of(whole, rows, token_ids)[0]), (
                    f"the logits of the tokens from {token_ids.start} to {token_ids.stop - 1} "
                    "differ if they are a shard of the vocabulary: take token ids relative to "
                    "rows.first_token_id, and nothing from other columns"
                )

    def test_masked_tokens_stay_masked(self) -> None:
        """Logits of -inf, from a grammar, stay -inf, and at least one other token stays finite."""
        for masked in (slice(None, None, 3), slice(1, None)):
            logits = self._logits()
            logits[:, masked] = -torch.inf
            for fields in self.active:
                out = self._apply(logits, [fields] * NUM_ROWS)
                assert (out[:, masked] == -torch.inf).all(), (
                    f"with {fields} logits of -inf became finite"
                )
                assert not out.isnan().any(), f"with {fields} logits became NaN"
                assert out.isfinite().any(-1).all(), f"with {fields} no finite logit is left"

    def test_shape_and_type_stay(self) -> None:
        """`apply` returns `[N, V]` float32, for one row as well."""
        for num_rows in (1, NUM_ROWS):
            out = self._apply(self._logits()[:num_rows], [self._active(0)] * num_rows)
            assert out.shape == (num_rows, self.vocab_size), (
                f"apply must return shape {(num_rows, self.vocab_size)}, got {tuple(out.shape)}"
            )
            assert out.dtype == torch.float32, f"apply must return float32, got {out.dtype}"

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or has a result whose size depends on data."""
        skip_without_device(self.capabilities)
        fields = [self._active(row) for row in range(NUM_ROWS)]
        for is_known in (True, False):
            rows = self._rows(fields, is_known_to_host=is_known)
            run_without_data(self._step(META).apply, self._logits(), rows)
            run_without_sync(self._step().apply, self._logits(), rows)

    def _step(self, device: torch.device | None = None) -> LogitsProcessor:
        step = self.step_class(self.vocab_size, device or torch.device(self.device))
        if has_companions(self.capabilities):
            return BesideCompanions(step, self.capabilities)
        return step

    def _has_neutral(self) -> bool:
        return bool(self.neutral) or not self.capabilities.is_opt_in

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _state(self, number: int) -> Mapping[str, float]:
        """Return the states of the row with a number."""
        return self.states[number % len(self.states)] if self.states else {}

    def _histories(self) -> Sequence[History]:
        return self.histories or (ANY_HISTORY,)

    def _longest_histories(self) -> tuple[History, History]:
        """Return the history with the longest completion, and one for another request."""
        every = sorted(
            self._histories(), key=lambda each: len(each.token_ids) - each.num_prompt_tokens
        )
        return every[-1], every[0]

    def _full(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: fields.get(f.name, f.worker_default) for f in self.capabilities.fields}

    def _logits(self) -> Tensor:
        return random_logits(NUM_ROWS, self.vocab_size, scale=3.0).to(self.device)

    def _rows(
        self, fields: Sequence[Mapping[str, Any]], rows: Sequence[int] | None = None, **given: Any
    ) -> SampledRows:
        """Return the rows of a batch with the given row numbers, by default the first ones."""
        histories = self._histories()
        numbers = range(len(fields)) if rows is None else rows
        by_number: dict[str, Any] = {
            "histories": [histories[number % len(histories)] for number in numbers],
            "states": [self._state(number) for number in numbers],
        }
        return sampled_rows(
            self.capabilities, fields, device=self.device, vocab_size=self.vocab_size,
            **by_number | given,
        )  # fmt: skip

    def _apply(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **given: Any) -> Tensor:
        return self._step().apply(logits.clone(), self._rows(fields, **given))
