"""Contract of logits processors that carry state from token to token of a request.

    class TestMine(StatefulLogitsProcessorContract):
        step_class = MyProcessor
        capabilities = MY_CAPABILITIES  # with states=("my_state",)
        active = ({"my_field": 0.5},)
        states = ({"my_state": 0.0}, {"my_state": 3.5})

The rows of all tests take the `states` in turn, those of `LogitsProcessorContract` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire.testing.sampling.logits_contract import NUM_ROWS, LogitsProcessorContract
from quire.testing.sampling.no_waiting import (
    META,
    run_without_data,
    run_without_sync,
    skip_without_device,
)
from quire.testing.sampling.sampled_rows import NUM_SLOTS


class StatefulLogitsProcessorContract(LogitsProcessorContract):
    """Tests that a logits processor with state must pass.

    Attributes:
        states: Examples of its states, with all names; they must give different logits with each
            `active` example.
    """

    tests_states = True

    def test_the_initial_state_is_one_number_for_each_name(self) -> None:
        """`initial_state` returns finite numbers, and the same ones each time."""
        for fields in self.active:
            first, again = (self._step().initial_state(self._full(fields)) for _ in range(2))
            values = torch.tensor(list(first), dtype=torch.float32)
            assert len(values) == len(self.capabilities.states), (
                f"with {fields} initial_state must return a number for each of "
                f"{', '.join(self.capabilities.states)}, got {list(first)}"
            )
            assert values.isfinite().all(), (
                f"with {fields} initial_state must be finite as float32, got {list(first)}"
            )
            assert list(first) == list(again), f"with {fields} initial_state differs from the first"

    def test_given_states_matter(self) -> None:
        """Rows that differ only in their states get different logits."""
        logits = self._logits()[:1].repeat(NUM_ROWS, 1)
        for fields in self.active:
            rows = self._rows(
                [fields] * NUM_ROWS, [0] * NUM_ROWS, seeds=[3] * NUM_ROWS,
                states=[self._state(row) for row in range(NUM_ROWS)],
            )  # fmt: skip
            out = self._step().apply(logits.clone(), rows)
            assert not torch.equal(out, out[:1].expand_as(out)), (
                f"with {fields} all of the states {list(self.states)} give the same logits: choose "
                "states that differ for the step; a state that is never read is not needed"
            )

    def test_tokens_change_the_state(self) -> None:
        """`observe` returns finite states, `[N, S]` float32, and not always the old ones."""
        for fields in self.active:
            rows = self._rows([fields] * NUM_ROWS)
            found = self._observe(self._step(), rows)
            before = torch.cat([rows.field(name) for name in self.capabilities.states], 1)
            assert found.shape == before.shape, (
                f"observe must return shape {tuple(before.shape)}, got {tuple(found.shape)}"
            )
            assert found.dtype == torch.float32, f"observe must return float32, got {found.dtype}"
            assert found.isfinite().all(), f"with {fields} a state becomes infinite or NaN"
            assert not torch.equal(found, before), f"with {fields} no token changes the state"

    def test_the_state_of_a_row_does_not_depend_on_the_others(self) -> None:
        """Compare the next states of rows in a batch with those alone in another slot."""
        fields = [self._active(row) for row in range(NUM_ROWS)]
        together = self._observe(self._step(), self._rows(fields))
        for row in range(NUM_ROWS):
            alone = self._rows([fields[row]], [row], slots=[NUM_SLOTS - 1 - row], seeds=[row])
            found = self._observe(self._step(), alone, [row])
            assert torch.equal(together[row], found[0]), (
                f"the next state of row {row} in a batch differs from that alone in another slot"
            )

    def test_the_state_is_not_in_the_step(self) -> None:
        """Observe the same batch twice, with another between."""
        step, fields = self._step(), [self._active(row) for row in range(NUM_ROWS)]
        rows, others = self._rows(fields), self._rows([self._active(1)] * NUM_ROWS)
        before = self._observe(step, rows)
        self._observe(step, others, list(reversed(range(NUM_ROWS))))
        assert torch.equal(self._observe(step, rows), before), (
            "the same batch gives other states the second time: a step is called again for the "
            "same rows after a failure, so it must read its state from the rows only"
        )

    def test_only_the_engine_writes_states(self) -> None:
        """`apply` and `observe` change no state, and `observe` changes no logits or tokens."""
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        names = self.capabilities.states
        before = {name: rows.slot_fields[name].clone() for name in names}
        logits, token_ids = self._logits(), self._tokens(range(NUM_ROWS))
        kept, tokens = logits.clone(), token_ids.clone()
        self._step().apply(logits.clone(), rows)
        self._step().observe(logits, rows, token_ids)
        for name in names:
            assert torch.equal(rows.slot_fields[name], before[name]), (
                f"the step writes to the state {name}: return the new values from observe"
            )
        assert torch.equal(logits, kept), "observe must not change the logits"
        assert torch.equal(token_ids, tokens), "observe must not change the token ids"

    def test_the_host_fields_are_only_a_hint_to_the_state(self) -> None:
        """Compare the next states with and without `host_fields`."""
        fields = [self._active(row) for row in range(NUM_ROWS)]
        known, unknown = (
            self._observe(self._step(), self._rows(fields, is_known_to_host=is_known))
            for is_known in (True, False)
        )
        assert torch.equal(known, unknown), "the next states differ if host_fields is empty"

    def test_the_state_stays_finite_if_one_token_is_left(self) -> None:
        """A grammar may leave one token, whose probability is then 1."""
        for fields in self.active:
            rows, token_ids = self._rows([fields] * NUM_ROWS), self._tokens(range(NUM_ROWS))
            logits = torch.full_like(self._logits(), -torch.inf)
            logits.scatter_(1, token_ids[:, None], 0.0)
            found = self._step().observe(logits, rows, token_ids)
            assert found.isfinite().all(), (
                f"with {fields} the state becomes infinite or NaN if only one token is left"
            )

    def test_observing_does_not_wait_for_the_device(self) -> None:
        """No operator copies a value to the host or has a result whose size depends on data."""
        skip_without_device(self.capabilities)
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        for step, run in (
            (self.step_class(self.vocab_size, META), run_without_data),
            (self._step(), run_without_sync),
        ):
            token_ids = self._tokens(range(NUM_ROWS)).to(step.device)
            run(_observing(step, token_ids), self._logits(), rows)

    def _tokens(self, numbers: Sequence[int]) -> Tensor:  # [N] int64
        ids = [(7 * number + 3) % self.vocab_size for number in numbers]
        return torch.tensor(ids, device=self.device)

    def _observe(
        self, step: LogitsProcessor, rows: SampledRows, numbers: Sequence[int] | None = None
    ) -> Tensor:
        """Observe the tokens of rows with the given numbers, by default the first ones."""
        numbers = range(len(rows.slots)) if numbers is None else numbers
        return step.observe(self._logits()[list(numbers)], rows, self._tokens(numbers))


def _observing(step: LogitsProcessor, token_ids: Tensor) -> Callable[[Tensor, SampledRows], Tensor]:
    """Return `observe` of a step with its tokens given."""
    return lambda logits, rows: step.observe(logits, rows, token_ids)
