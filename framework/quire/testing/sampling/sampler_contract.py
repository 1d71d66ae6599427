"""What every sampler step that draws must do, whatever its distribution.

    class TestMine(SamplerContract):
        step_class = MyDraw
        capabilities = MY_CAPABILITIES
        active = ({"temperature": 1.0},)
        neutral = {"temperature": 0.0}

`FusedSamplerContract` is for a draw that can also do steps before it. The kit does not know your
distribution: compare what is drawn with it in a test of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler, SamplerCapabilities
from quire.testing.sampling.no_waiting import META, run_without_data, run_without_waiting
from quire.testing.sampling.sampled_rows import NUM_SLOTS, random_logits, sampled_rows

NUM_ROWS = 12
NUM_DRAWS = 40
SOURCES = ("seeds", "children", "positions")  # of randomness
SampleFunction = Callable[[Tensor, SampledRows], Tensor]
VARIED = (*((source,) for source in SOURCES), *combinations(SOURCES, 2))


class SamplerContract:
    """Tests that a step which draws must pass.

    Attributes:
        step_class: The step.
        capabilities: What it is registered with.
        active: Examples of request fields with which it draws at random.
        neutral: Request fields with which it takes the likeliest token.
        vocab_size: V of the logits in these tests.
        device: Where they lie.
    """

    step_class: ClassVar[type[Sampler]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]]
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    def test_neutral_fields_are_called_neutral(self) -> None:
        """And the examples of random ones are not."""
        step = self._step()
        assert step.is_neutral(self._full(self.neutral)), (
            f"is_neutral says that {self.neutral} does not take the likeliest token"
        )
        for fields in self.active:
            assert not step.is_neutral(self._full(fields)), f"is_neutral is true of {fields}"

    @pytest.mark.parametrize("all_greedy", [False, True])
    def test_neutral_rows_take_the_likeliest_token(self, all_greedy: bool) -> None:
        """Whether or not the host has noticed that all of them are neutral."""
        logits = self._logits()
        sampled = self._sample(logits, [self.neutral] * NUM_ROWS, all_greedy=all_greedy)
        assert torch.equal(sampled, logits.argmax(-1)), (
            f"rows of {self.neutral} take other tokens than the likeliest, all_greedy={all_greedy}"
        )

    def test_neutral_and_active_rows_share_a_batch(self) -> None:
        """Greedy rows are greedy beside random ones."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        sampled = self._sample(logits, fields)
        assert torch.equal(sampled[1::2], logits.argmax(-1)[1::2]), (
            f"rows of {self.neutral} do not take the likeliest token beside random rows"
        )

    def test_the_same_seed_draws_the_same_token(self) -> None:
        """There is no hidden state."""
        step, logits = self._step(), self._logits()
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        assert torch.equal(step.sample(logits.clone(), rows), step.sample(logits.clone(), rows)), (
            "the same batch draws other tokens the second time: the draw has a state or a generator"
        )

    @pytest.mark.parametrize("varied", VARIED, ids=" and ".join)
    def test_seed_child_and_position_all_matter(self, varied: tuple[str, ...]) -> None:
        """Even logits give many tokens, whichever varies; nor is it the sum of two that counts."""
        self._expect_many_tokens(self._step().sample, varied)

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Neither on their order, nor on their number, nor on the slots."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        seeds = [row * 7 for row in range(NUM_ROWS)]
        together = self._sample(logits, fields, seeds=seeds)
        for row in range(NUM_ROWS):
            alone = self._sample(
                logits[row : row + 1], [fields[row]], seeds=[seeds[row]], slots=[NUM_SLOTS - 1]
            )
            assert alone[0] == together[row], (
                f"row {row} draws another token in a batch than alone in another slot"
            )

    def test_the_host_fields_are_only_a_hint(self) -> None:
        """The same tokens are drawn where the host does not know the rows."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        known = self._sample(logits, fields)
        assert torch.equal(known, self._sample(logits, fields, is_known_to_host=False)), (
            "other tokens are drawn where host_fields is empty"
        )

    def test_masked_tokens_are_never_drawn(self) -> None:
        """Not even where only one is left, first or last; and all others are, now and then."""
        for allowed in ([0], [self.vocab_size - 1], [3, 17]):
            logits = torch.full((NUM_DRAWS, self.vocab_size), -torch.inf)
            logits[:, allowed] = 0.0
            fields = [self._active(0)] * NUM_DRAWS
            sampled = set(self._sample(logits, fields, seeds=range(NUM_DRAWS)).tolist())
            assert sampled == set(allowed), f"of the tokens {allowed}, all alike, came {sampled}"

    def test_one_token_a_row_comes_back(self) -> None:
        """`[N]` int64, each in the vocabulary."""
        sampled = self._sample(self._logits(), [self._active(row) for row in range(NUM_ROWS)])
        assert sampled.shape == (NUM_ROWS,), (
            f"{NUM_ROWS} rows give the shape {tuple(sampled.shape)}"
        )
        assert sampled.dtype == torch.int64, f"token ids are {sampled.dtype}, not int64"
        self._expect_token_ids(sampled)

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        for is_known in (True, False):
            rows = sampled_rows(self.capabilities, fields, is_known_to_host=is_known)
            step = self.step_class(self.vocab_size, META)
            run_without_data(step.sample, self._logits(), rows)
            run_without_waiting(self._step().sample, self._logits(), rows)

    def _step(self) -> Sampler:
        return self.step_class(self.vocab_size, torch.device(self.device))

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _full(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: fields.get(f.name, f.default) for f in self.capabilities.fields}

    def _logits(self, num_rows: int = NUM_ROWS) -> Tensor:
        """Return logits so even that chance hardly ever takes the likeliest token."""
        return random_logits(num_rows, self.vocab_size, scale=1.0).to(self.device)

    def _rows(self, fields: Sequence[Mapping[str, Any]], **given: Any) -> SampledRows:
        return sampled_rows(self.capabilities, fields, device=self.device, **given)

    def _sample(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **given: Any) -> Tensor:
        return self._step().sample(logits.clone().to(self.device), self._rows(fields, **given))

    def _expect_many_tokens(self, sample: SampleFunction, varied: Sequence[str]) -> None:
        rising = range(1, NUM_DRAWS + 1)
        numbers: dict[str, Sequence[int]] = dict.fromkeys(SOURCES, [3] * NUM_DRAWS)
        numbers |= dict(zip(varied, (rising, rising[::-1]), strict=False))
        even = torch.zeros(NUM_DRAWS, self.vocab_size, device=self.device)
        rows = self._rows([self._active(0)] * NUM_DRAWS, **numbers)
        num_tokens = len(set(sample(even, rows).tolist()))
        assert num_tokens > min(8, self.vocab_size // 2), (
            f"{NUM_DRAWS} rows of even logits, with other {' and '.join(varied)} each, draw only "
            f"{num_tokens} tokens"
        )

    def _expect_token_ids(self, sampled: Tensor) -> None:
        ids = sampled.tolist()
        assert 0 <= min(ids) <= max(ids) < self.vocab_size, (
            f"{ids} are not all token ids of a vocabulary of {self.vocab_size}"
        )


class FusedSamplerContract(SamplerContract):
    """Tests that a draw must pass which can do steps before it.

    Attributes:
        fused: Those steps, in the order of the pipeline.
        mixed: Request fields, each of which needs some of them.
    """

    fused: ClassVar[Sequence[type[LogitsProcessor]]]
    mixed: ClassVar[Sequence[Mapping[str, Any]]]

    def test_it_draws_what_it_would_draw_after_the_steps(self) -> None:
        """Whatever the rows of the batch ask for, each a child and a position of its own."""
        logits, fields = self._given()
        numbers = range(len(fields))
        rows = self._rows(fields, children=numbers, positions=numbers[::-1])
        fusing = self._step().sample_fused(logits.clone(), rows)
        stepwise = self._step().sample(self._after_steps(logits, rows), rows)
        differing = [fields[row] for row in (fusing != stepwise).nonzero().flatten().tolist()]
        assert not differing, f"other tokens than after the steps one by one, with {differing}"

    @pytest.mark.parametrize("varied", VARIED, ids=" and ".join)
    def test_seed_child_and_position_all_matter_to_absorbing(self, varied: tuple[str, ...]) -> None:
        """As they do to a draw that absorbs nothing."""
        self._expect_many_tokens(self._step().sample_fused, varied)

    def test_absorbing_needs_nothing_from_the_host(self) -> None:
        """And it leaves the logits as they are."""
        logits, fields = self._given()
        given = logits.clone()
        sampled = self._step().sample_fused(given, self._rows(fields))
        unknown = self._rows(fields, is_known_to_host=False)
        assert torch.equal(given, logits), "sample_fused has changed the logits"
        assert torch.equal(sampled, self._step().sample_fused(given, unknown)), (
            "other tokens are drawn where host_fields is empty, as in a captured graph"
        )

    def test_absorbing_treats_each_row_alone(self) -> None:
        """A row does not see the others, and rows of padding share a slot."""
        logits, fields = self._given()
        together = self._step().sample_fused(logits, self._rows(fields))
        padding = len(fields)  # a slot that no request has
        for row in range(NUM_ROWS):
            padded = self._rows(
                [fields[row], {}, {}], seeds=[row, 0, 0], slots=[row, padding, padding]
            )
            sampled = self._step().sample_fused(logits[[row, 0, 1]], padded)
            assert sampled[0] == together[row], (
                f"row {row} draws another token in a batch than beside rows of padding"
            )
            self._expect_token_ids(sampled)

    def test_a_logit_that_is_not_a_number_is_drawn_in_its_row_only(self) -> None:
        """So the worker, which looks at the logit of the token, fails that request alone."""
        logits, fields = self._given()
        rows = self._rows(fields)
        expected = self._step().sample_fused(logits, rows)
        for row in range(0, len(fields), 2):
            token_id = (3 + row) % self.vocab_size
            logits[row, token_id], expected[row] = torch.nan, token_id
        sampled = self._step().sample_fused(logits, rows)
        assert torch.equal(sampled[::2], expected[::2]), (
            f"rows with a logit that is not a number draw {sampled[::2].tolist()}, not its token "
            f"{expected[::2].tolist()}"
        )
        assert torch.equal(sampled[1::2], expected[1::2]), (
            "a logit that is not a number changes what other rows draw"
        )

    def test_a_row_without_a_token_still_gives_an_id(self) -> None:
        """All of its logits are minus infinity; the others are drawn as ever."""
        logits, fields = self._given()
        rows = self._rows(fields)
        expected = self._step().sample_fused(logits, rows)
        logits[::3] = -torch.inf
        sampled = self._step().sample_fused(logits, rows)
        self._expect_token_ids(sampled)
        assert torch.equal(sampled[1::3], expected[1::3]), (
            "a row whose logits are all minus infinity changes what other rows draw"
        )

    def test_absorbing_does_not_wait_for_the_device(self) -> None:
        """No operator copies a value to the host or sizes its result by data."""
        logits, fields = self._given()
        rows = sampled_rows(self.capabilities, fields, is_known_to_host=False)
        step = self.step_class(self.vocab_size, META)
        run_without_data(step.sample_fused, logits, rows)
        run_without_waiting(self._step().sample_fused, logits, rows)

    def _given(self) -> tuple[Tensor, list[Mapping[str, Any]]]:
        """Return logits and fields of a batch that holds each kind of row."""
        kinds = (self.neutral, *self.active, *self.mixed)
        num_rows = max(NUM_ROWS, len(kinds))
        return self._logits(num_rows), [kinds[row % len(kinds)] for row in range(num_rows)]

    def _after_steps(self, logits: Tensor, rows: SampledRows) -> Tensor:
        logits = logits.clone()
        for step_class in self.fused:
            step = step_class(self.vocab_size, torch.device(self.device))
            logits = step.apply(logits, rows)
        return logits
