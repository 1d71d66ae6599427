"""What every sampler step must do, whatever it computes.

Write a test class for your step, and pytest does the rest:

    class TestMine(LogitsStepContract):
        step_class = MyStep
        capabilities = MY_CAPABILITIES
        active = ({"my_field": 0.5}, {"my_field": 2.0})

`DrawStepContract` is for the step that draws, and `AbsorbingDrawContract` for one that can also do
steps before it. The kit cannot know what your step is for; compare it with a plain implementation
in tests of your own. A step that runs kernels is tested on a GPU by `device = "cuda"`, and without
one in Triton's interpreter.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import DrawStep, LogitsStep, SampledRows, SamplerCapabilities

COLUMN_DTYPES = {float: torch.float32, int: torch.int64, bool: torch.bool}
NUM_SLOTS = 16
NUM_ROWS = 11
MAX_LEN = 32
META = torch.device("meta")  # tensors with a shape and no data: whoever asks for a value fails


def sampled_rows(
    capabilities: SamplerCapabilities,
    fields: Sequence[Mapping[str, Any]],
    *,
    seeds: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    all_greedy: bool = False,
    is_known_to_host: bool = True,
    device: str = "cpu",
) -> SampledRows:
    """Build the rows of a draw, as a worker would.

    Args:
        capabilities: Whose request fields become columns.
        fields: The values of each row; what is missing is the field's default.
        seeds: One a row; None counts from 0.
        positions: One a row; None is 7 everywhere.
        slots: One a row; None counts from 0.
        all_greedy: What the host says about the rows.
        is_known_to_host: Whether the rows carry `host_fields`.
        device: Where their tensors lie.
    """
    slots = range(len(fields)) if slots is None else slots
    full = [{f.name: row.get(f.name, f.default) for f in capabilities.fields} for row in fields]
    where = torch.tensor(list(slots))
    num_slots = max(NUM_SLOTS, int(where.max()) + 1)
    columns = {
        f.name: torch.zeros(num_slots, dtype=COLUMN_DTYPES[f.type]) for f in capabilities.fields
    }
    for name, column in columns.items():
        column[where] = torch.tensor([row[name] for row in full]).to(column.dtype)
    columns |= {name: torch.zeros(num_slots, dtype=torch.int64) for name in ("seed", "child")}
    columns["seed"][where] = torch.tensor(list(seeds if seeds is not None else range(len(full))))
    rows = SampledRows(
        slots=where,
        positions=torch.tensor(list(positions)) if positions else torch.full((len(full),), 7),
        columns=columns,
        token_ids=(torch.arange(num_slots * MAX_LEN) % 50).int().view(num_slots, MAX_LEN),
        num_prompt_tokens=torch.full((num_slots,), 5),
        all_greedy=all_greedy,
        host_fields=full if is_known_to_host else (),
    )
    return _on(rows, torch.device(device))


class LogitsStepContract:
    """Tests that a step which changes logits must pass.

    Attributes:
        step_class: The step.
        capabilities: What it is registered with.
        active: Examples of request fields with which the step does something.
        neutral: Request fields with which it does nothing; the fields' defaults, if empty.
        vocab_size: V of the logits in these tests.
        device: Where they lie.
    """

    step_class: ClassVar[type[LogitsStep]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]] = {}
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    def test_neutral_fields_are_called_neutral(self) -> None:
        """And the examples of active ones are not."""
        assert self._step().is_neutral(self._full(self.neutral))
        for fields in self.active:
            assert not self._step().is_neutral(self._full(fields)), f"{fields} is called neutral"

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
            assert not torch.equal(self._apply(logits, [fields] * NUM_ROWS), logits), fields

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Neither on their order, nor on their number, nor on the slots."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        together = self._apply(logits, fields, slots=range(NUM_ROWS))
        backwards = list(reversed(range(NUM_ROWS)))
        turned = self._apply(logits[backwards], [fields[i] for i in backwards], slots=backwards)
        for row in range(NUM_ROWS):
            alone = self._apply(logits[row : row + 1], [fields[row]], slots=[row])
            assert torch.equal(together[row], turned[backwards.index(row)]), f"order, row {row}"
            assert torch.equal(together[row], alone[0]), f"row {row} differs alone and in a batch"

    def test_the_host_fields_are_only_a_hint(self) -> None:
        """The result is the same where the host does not know the rows."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        known = self._apply(logits, fields)
        assert torch.equal(known, self._apply(logits, fields, is_known_to_host=False))

    def test_masked_tokens_stay_masked(self) -> None:
        """A grammar has the last word; and the likeliest allowed token stays possible."""
        logits = self._logits()
        logits[:, ::3] = -torch.inf
        for fields in self.active:
            out = self._apply(logits, [fields] * NUM_ROWS)
            assert (out[:, ::3] == -torch.inf).all(), f"{fields} brought a masked token back"
            assert not out.isnan().any(), f"{fields} made logits that are not numbers"
            assert out.isfinite().any(-1).all(), f"{fields} left no token"

    def test_shape_and_type_stay(self) -> None:
        """`[N, V]` float32 in, the same out, for one row as well."""
        for num_rows in (1, NUM_ROWS):
            out = self._apply(self._logits()[:num_rows], [self._active(0)] * num_rows)
            assert out.shape == (num_rows, self.vocab_size)
            assert out.dtype == torch.float32

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        rows = sampled_rows(self.capabilities, [self._active(row) for row in range(NUM_ROWS)])
        step = self.step_class(self.vocab_size, META)
        _run_without_data(step.apply, self._logits(), rows)
        _run_without_waiting(self._step().apply, self._logits(), rows)

    def _step(self) -> LogitsStep:
        return self.step_class(self.vocab_size, torch.device(self.device))

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _full(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: fields.get(f.name, f.default) for f in self.capabilities.fields}

    def _logits(self) -> Tensor:
        return _logits(NUM_ROWS, self.vocab_size).to(self.device)

    def _apply(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **rows: Any) -> Tensor:
        there = sampled_rows(self.capabilities, fields, device=self.device, **rows)
        return self._step().apply(logits.clone(), there)


class DrawStepContract:
    """Tests that a step which draws must pass.

    Attributes:
        step_class: The step.
        capabilities: What it is registered with.
        active: Examples of request fields with which it draws at random.
        neutral: Request fields with which it takes the likeliest token.
        vocab_size: V of the logits in these tests.
        device: Where they lie.
    """

    step_class: ClassVar[type[DrawStep]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]]
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    @pytest.mark.parametrize("all_greedy", [False, True])
    def test_neutral_rows_take_the_likeliest_token(self, all_greedy: bool) -> None:
        """Whether or not the host has noticed that all of them are neutral."""
        logits = self._logits()
        drawn = self._draw(logits, [self.neutral] * NUM_ROWS, all_greedy=all_greedy)
        assert torch.equal(drawn, logits.argmax(-1))

    def test_neutral_and_active_rows_share_a_batch(self) -> None:
        """Greedy rows are greedy beside random ones."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        drawn = self._draw(logits, fields)
        assert torch.equal(drawn[1::2], logits.argmax(-1)[1::2])

    def test_the_same_seed_draws_the_same_token(self) -> None:
        """There is no hidden state."""
        logits, fields = self._logits(), [self._active(row) for row in range(NUM_ROWS)]
        assert torch.equal(self._draw(logits, fields), self._draw(logits, fields))

    def test_seed_and_position_both_matter(self) -> None:
        """From even logits, many rows draw many different tokens."""
        count = 2 * self.vocab_size
        logits, fields = torch.zeros(count, self.vocab_size), [self._active(0)] * count
        by_seed = self._draw(logits, fields, seeds=range(count))
        by_position = self._draw(logits, fields, seeds=[3] * count, positions=range(1, count + 1))
        assert len(set(by_seed.tolist())) > self.vocab_size // 2
        assert len(set(by_position.tolist())) > self.vocab_size // 2

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Neither on their order, nor on their number, nor on the slots."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        seeds = [row * 7 for row in range(NUM_ROWS)]
        together = self._draw(logits, fields, seeds=seeds)
        for row in range(NUM_ROWS):
            alone = self._draw(
                logits[row : row + 1], [fields[row]], seeds=[seeds[row]], slots=[NUM_SLOTS - 1]
            )
            assert alone[0] == together[row], f"row {row} differs alone and in a batch"

    def test_masked_tokens_are_never_drawn(self) -> None:
        """Not even where only one is left, first or last."""
        for allowed in ([0], [self.vocab_size - 1], [3, 17]):
            logits = torch.full((200, self.vocab_size), -torch.inf)
            logits[:, allowed] = 0.0
            drawn = self._draw(logits, [self._active(0)] * 200, seeds=range(200))
            assert set(drawn.tolist()) == set(allowed)

    def test_one_token_a_row_comes_back(self) -> None:
        """`[N]` int64, each in the vocabulary."""
        drawn = self._draw(self._logits(), [self._active(row) for row in range(NUM_ROWS)])
        assert drawn.shape == (NUM_ROWS,)
        assert drawn.dtype == torch.int64
        assert 0 <= int(drawn.min()) <= int(drawn.max()) < self.vocab_size

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        rows = sampled_rows(self.capabilities, fields)
        step = self.step_class(self.vocab_size, META)
        _run_without_data(step.draw, self._logits(), rows)
        _run_without_waiting(self._step().draw, self._logits(), rows)

    def _step(self) -> DrawStep:
        return self.step_class(self.vocab_size, torch.device(self.device))

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _logits(self) -> Tensor:
        return _logits(NUM_ROWS, self.vocab_size).to(self.device)

    def _draw(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **rows: Any) -> Tensor:
        there = sampled_rows(self.capabilities, fields, device=self.device, **rows)
        return self._step().draw(logits.clone().to(self.device), there)


class AbsorbingDrawContract(DrawStepContract):
    """Tests that a draw must pass which can do steps before it.

    Attributes:
        absorbed: Those steps, in the order of the pipeline.
        mixed: Request fields, each of which needs some of them.
    """

    absorbed: ClassVar[Sequence[type[LogitsStep]]]
    mixed: ClassVar[Sequence[Mapping[str, Any]]]

    def test_it_draws_what_it_would_draw_after_the_steps(self) -> None:
        """Whatever the rows of the batch ask for."""
        logits, fields = self._logits(), self._all_fields()
        rows = sampled_rows(self.capabilities, fields, device=self.device)
        assert torch.equal(
            self._step().draw_absorbing(logits.clone(), rows),
            self._step().draw(self._after_steps(logits, rows), rows),
        )

    def test_absorbing_needs_nothing_from_the_host(self) -> None:
        """And it leaves the logits as they are."""
        logits, fields = self._logits(), self._all_fields()
        known = sampled_rows(self.capabilities, fields, device=self.device)
        given = logits.clone()
        drawn = self._step().draw_absorbing(given, known)
        unknown = sampled_rows(
            self.capabilities, fields, device=self.device, is_known_to_host=False
        )
        assert torch.equal(drawn, self._step().draw_absorbing(given, unknown))
        assert torch.equal(given, logits)

    def test_absorbing_treats_each_row_alone(self) -> None:
        """A row does not see the others, and rows of padding share a slot."""
        logits, fields = self._logits(), self._all_fields()
        together = self._step().draw_absorbing(
            logits, sampled_rows(self.capabilities, fields, device=self.device)
        )
        for row in range(NUM_ROWS):
            rows = sampled_rows(
                self.capabilities,
                [fields[row], {}, {}],
                seeds=[row, 0, 0],
                slots=[row, NUM_SLOTS, NUM_SLOTS],
                device=self.device,
            )
            drawn = self._step().draw_absorbing(logits[[row, 0, 1]], rows)
            assert drawn[0] == together[row], f"row {row}"
            assert 0 <= int(drawn.min()) <= int(drawn.max()) < self.vocab_size

    def test_a_logit_that_is_not_a_number_is_drawn_in_its_row_only(self) -> None:
        """So the worker, which looks at the logit of the token, fails that request alone."""
        logits, fields = self._logits(), self._all_fields()
        rows = sampled_rows(self.capabilities, fields, device=self.device)
        expected = self._step().draw_absorbing(logits, rows)
        for row in range(0, NUM_ROWS, 2):
            logits[row, 3 + row] = torch.nan
            expected[row] = 3 + row
        assert torch.equal(self._step().draw_absorbing(logits, rows), expected)

    def test_a_row_without_a_token_still_gives_an_id(self) -> None:
        """All of its logits are minus infinity; the others are drawn as ever."""
        logits, fields = self._logits(), self._all_fields()
        rows = sampled_rows(self.capabilities, fields, device=self.device)
        expected = self._step().draw_absorbing(logits, rows)
        logits[::3] = -torch.inf
        drawn = self._step().draw_absorbing(logits, rows)
        assert 0 <= int(drawn.min()) <= int(drawn.max()) < self.vocab_size
        assert torch.equal(drawn[1::3], expected[1::3])

    def test_absorbing_does_not_wait_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        rows = sampled_rows(self.capabilities, self._all_fields(), is_known_to_host=False)
        step = self.step_class(self.vocab_size, META)
        _run_without_data(step.draw_absorbing, self._logits(), rows)
        _run_without_waiting(self._step().draw_absorbing, self._logits(), rows)

    def _all_fields(self) -> list[Mapping[str, Any]]:
        kinds = (self.neutral, *self.active, *self.mixed)
        return [kinds[row % len(kinds)] for row in range(NUM_ROWS)]

    def _after_steps(self, logits: Tensor, rows: SampledRows) -> Tensor:
        logits = logits.clone()
        for step_class in self.absorbed:
            step = step_class(self.vocab_size, torch.device(self.device))
            logits = step.apply(logits, rows)
        return logits


def _logits(num_rows: int, vocab_size: int) -> Tensor:
    random = torch.Generator().manual_seed(5)
    return torch.randn(num_rows, vocab_size, generator=random) * 3


def _run_without_data(
    run: Callable[[Tensor, SampledRows], Tensor], logits: Tensor, rows: SampledRows
) -> None:
    """Call a step with tensors that have no values.

    Only a step that never looks at a value, and never sizes a tensor by one, can run so. This does
    not see a copy from ordinary memory to the device, such as `torch.tensor(list, device=...)`, nor
    what launches of kernels do, which are left out: `_run_without_waiting` does, on a GPU.
    """
    try:
        with _no_launches():
            run(logits.to(META), _on(rows, META))
    except (RuntimeError, NotImplementedError) as error:
        pytest.fail(f"the step needs values on the host, so it waits for the device: {error}")


def _run_without_waiting(
    run: Callable[[Tensor, SampledRows], Tensor], logits: Tensor, rows: SampledRows
) -> None:
    """Call a step on a GPU, where torch raises if the host waits; elsewhere do nothing."""
    if logits.device.type != "cuda":
        return
    rows = _on(rows, logits.device)
    run(logits.clone(), rows)  # compiles what is compiled at first use
    given = logits.clone()
    with waiting_refused():
        run(given, rows)


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Let torch raise where the host would wait for the GPU."""
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode("default")


def _set_sync_debug_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see every wait
        torch.cuda.set_sync_debug_mode(mode)


def _on(rows: SampledRows, device: torch.device) -> SampledRows:
    return replace(
        rows,
        slots=rows.slots.to(device),
        positions=rows.positions.to(device),
        columns={name: column.to(device) for name, column in rows.columns.items()},
        token_ids=rows.token_ids.to(device),
        num_prompt_tokens=rows.num_prompt_tokens.to(device),
    )


@contextmanager
def _no_launches() -> Iterator[None]:
    """Leave out the Triton kernels: they run on the device, so nobody waits for them."""
    if "triton" not in sys.modules:  # then the step has none
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with pytest.MonkeyPatch.context() as patch:
        for kind in (InterpretedFunction, JITFunction):
            patch.setattr(kind, "run", _leave_out)
        yield


def _leave_out(kernel: Any, *args: Any, **kwargs: Any) -> None:
    del kernel, args, kwargs
