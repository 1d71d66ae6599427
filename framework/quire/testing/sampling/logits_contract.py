"""What every sampler step that changes logits must do, whatever it computes.

Write a test class for your step, and pytest does the rest:

    class TestMine(LogitsProcessorContract):
        step_class = MyStep
        capabilities = MY_CAPABILITIES
        active = ({"my_field": 0.5}, {"my_field": 2.0})

A step that reads the tokens of a request gets them from the test as well:

        histories = (History((1, 2, 3, 1, 2), num_prompt_tokens=3), History((7,), 1))

The kit cannot know what your step is for; compare it with a plain implementation in tests of your
own, on `quire.testing.sampling.sampled_rows`. A step that runs kernels is tested on a GPU by
`device = "cuda"`, and without one in Triton's interpreter. Steps that draw have a kit of their own,
`quire.testing.sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows, SamplerCapabilities
from quire.testing.sampling.no_waiting import META, run_without_data, run_without_waiting
from quire.testing.sampling.sampled_rows import (
    ANY_HISTORY,
    NUM_SLOTS,
    History,
    random_logits,
    sampled_rows,
)

NUM_ROWS = 12  # even, so that two examples in turn come otherwise backwards


class LogitsProcessorContract:
    """Tests that a step which changes logits must pass.

    Attributes:
        step_class: The step.
        capabilities: What it is registered with.
        active: Examples of request fields with which the step does something.
        neutral: Request fields with which it does nothing; the fields' defaults, if empty.
        histories: Known tokens of requests, for a step that reads them; the rows of a batch have
            them in turn. Each of the `active` examples must tell them apart.
        vocab_size: V of the logits in these tests.
        device: Where they lie.
    """

    step_class: ClassVar[type[LogitsProcessor]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]] = {}
    histories: ClassVar[Sequence[History]] = ()
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    def test_neutral_fields_are_called_neutral(self) -> None:
        """And the examples of active ones are not."""
        step = self._step()
        assert step.is_neutral(self._full(self.neutral)), (
            f"is_neutral says that {self.neutral or 'the defaults'} would change logits"
        )
        for fields in self.active:
            assert not step.is_neutral(self._full(fields)), f"is_neutral is true of {fields}"

    def test_neutral_rows_are_left_as_they_are(self) -> None:
        """Also beside rows that are not neutral."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        out = self._apply(logits, fields)
        for row in range(1, NUM_ROWS, 2):
            assert torch.equal(out[row], logits[row]), f"neutral row {row} was changed"

    def test_active_rows_are_changed(self) -> None:
        """Otherwise the examples test nothing."""
        logits = self._logits()
        for fields in self.active:
            out = self._apply(logits, [fields] * NUM_ROWS)
            assert not torch.equal(out, logits), f"the active example {fields} changes no row"

    def test_given_histories_matter(self) -> None:
        """Rows that differ in their tokens only come out differently."""
        logits = self._logits()[:1].repeat(NUM_ROWS, 1)
        for fields in self.active if self.histories else ():
            out = self._apply(logits, [fields] * NUM_ROWS)
            assert not torch.equal(out, out[:1].expand_as(out)), (
                f"with {fields} all histories give the same logits: give some that the step tells "
                "apart, or none if it reads no tokens"
            )

    def test_only_tokens_before_the_position_are_read(self) -> None:
        """What stands behind is stale: of an earlier request, or a draft that may be refused."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        first, second = (
            self._apply(logits, fields, stale_token=token) for token in (0, self.vocab_size - 1)
        )
        assert torch.equal(first, second), "tokens at or behind a row's position are read"

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Neither on their order, nor on their number, nor on the slots."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        together = self._apply(logits, fields)
        backwards = list(reversed(range(NUM_ROWS)))
        turned = self._rows([fields[row] for row in backwards], backwards, slots=backwards)
        out = self._step().apply(logits[backwards], turned)
        for row in range(NUM_ROWS):
            assert torch.equal(together[row], out[backwards.index(row)]), (
                f"row {row} changes when the rows come in another order"
            )
            alone = self._rows([fields[row]], [row], slots=[NUM_SLOTS - 1 - row])
            (found,) = self._step().apply(logits[row : row + 1].clone(), alone)
            assert torch.equal(together[row], found), (
                f"row {row} differs in a batch and alone in another slot"
            )

    def test_rows_of_one_slot_stand_at_their_own_positions(self) -> None:
        """Drafts are verified in several rows of a request, each with its own tokens before it."""
        histories = self._histories()
        longest = max(range(len(histories)), key=lambda i: len(histories[i].token_ids))
        last = len(histories[longest].token_ids)
        logits = self._logits()[:2]
        for fields in self.active:
            both = self._rows(
                [fields] * 2, [longest] * 2, slots=[NUM_SLOTS - 1] * 2, positions=[last - 1, last]
            )
            together = self._step().apply(logits.clone(), both)
            for row, position in enumerate(both.positions.tolist()):
                alone = self._rows([fields], [longest], positions=[position])
                (found,) = self._step().apply(logits[row : row + 1].clone(), alone)
                assert torch.equal(together[row], found), (
                    f"with {fields} a row at position {position} changes beside another of its slot"
                )

    def test_a_step_keeps_nothing_from_one_batch_to_the_next(self) -> None:
        """It has no state and no generator."""
        step, logits = self._step(), self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        rows, others = self._rows(fields), self._rows([self._active(1)] * NUM_ROWS)
        before = step.apply(logits.clone(), rows)
        step.apply(-logits, others)
        assert torch.equal(step.apply(logits.clone(), rows), before), (
            "the same batch gives other logits the second time: the step has a state or a generator"
        )

    def test_the_host_fields_are_only_a_hint(self) -> None:
        """The result is the same where the host does not know the rows."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        known = self._apply(logits, fields)
        assert torch.equal(known, self._apply(logits, fields, is_known_to_host=False)), (
            "the logits differ where host_fields is empty"
        )

    def test_masked_tokens_stay_masked(self) -> None:
        """A grammar has the last word; and of the tokens that it allows one stays possible."""
        for masked in (slice(None, None, 3), slice(1, None)):
            logits = self._logits()
            logits[:, masked] = -torch.inf
            for fields in self.active:
                out = self._apply(logits, [fields] * NUM_ROWS)
                assert (out[:, masked] == -torch.inf).all(), f"{fields} brought masked tokens back"
                assert not out.isnan().any(), f"{fields} made logits that are not numbers"
                assert out.isfinite().any(-1).all(), f"{fields} left no token that is possible"

    def test_shape_and_type_stay(self) -> None:
        """`[N, V]` float32 in, the same out, for one row as well."""
        for num_rows in (1, NUM_ROWS):
            out = self._apply(self._logits()[:num_rows], [self._active(0)] * num_rows)
            assert out.shape == (num_rows, self.vocab_size), (
                f"logits of shape {(num_rows, self.vocab_size)} came back as {tuple(out.shape)}"
            )
            assert out.dtype == torch.float32, f"float32 logits came back as {out.dtype}"

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        fields = [self._active(row) for row in range(NUM_ROWS)]
        for is_known in (True, False):
            rows = self._rows(fields, is_known_to_host=is_known)
            step = self.step_class(self.vocab_size, META)
            run_without_data(step.apply, self._logits(), rows)
            run_without_waiting(self._step().apply, self._logits(), rows)

    def _step(self) -> LogitsProcessor:
        return self.step_class(self.vocab_size, torch.device(self.device))

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _histories(self) -> Sequence[History]:
        return self.histories or (ANY_HISTORY,)

    def _full(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: fields.get(f.name, f.default) for f in self.capabilities.fields}

    def _logits(self) -> Tensor:
        return random_logits(NUM_ROWS, self.vocab_size, scale=3.0).to(self.device)

    def _rows(
        self, fields: Sequence[Mapping[str, Any]], rows: Sequence[int] | None = None, **given: Any
    ) -> SampledRows:
        """Return rows of a batch: those of these numbers, by default the first ones."""
        histories = self._histories()
        numbers = range(len(fields)) if rows is None else rows
        own = [histories[number % len(histories)] for number in numbers]
        return sampled_rows(self.capabilities, fields, histories=own, device=self.device, **given)

    def _apply(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **given: Any) -> Tensor:
        return self._step().apply(logits.clone(), self._rows(fields, **given))
