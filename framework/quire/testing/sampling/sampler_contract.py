"""Contract of samplers, independent of their distribution.

    class TestMine(SamplerContract):
        step_class = MySampler
        capabilities = MY_CAPABILITIES
        active = ({"temperature": 1.0},)
        neutral = {"temperature": 0.0}

`FusedSamplerContract` is for a sampler that also fuses logits processors. The frequencies of the
tokens are compared with the softmax of the logits; a sampler of another distribution overrides
`probabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler, SamplerCapabilities
from quire.testing.probes import check_probe
from quire.testing.sampling.no_waiting import (
    META,
    run_without_data,
    run_without_sync,
    skip_without_device,
)
from quire.testing.sampling.sample_frequencies import SOURCES, check_frequencies, repeated_row
from quire.testing.sampling.sampled_rows import (
    NUM_SLOTS,
    random_logits,
    sampled_rows,
    shard_of,
    vocabulary_splits,
)

NUM_ROWS = 12
NUM_SAMPLES = 40
SampleFunction = Callable[[Tensor, SampledRows], Tensor]
SampleShard = Callable[[Tensor, SampledRows], tuple[Tensor, Tensor]]
VARIED = (*((source,) for source in SOURCES), *combinations(SOURCES, 2))


class SamplerContract:
    """Tests that a sampler must pass.

    Attributes:
        step_class: Sampler under test.
        capabilities: Capabilities that it is registered with.
        active: Examples of request fields with which it samples at random.
        neutral: Request fields with which it takes the most likely token.
        num_counted_rows: Number of rows whose tokens are counted; 0: none, for a step that runs in
            Triton's interpreter, which needs a second for a hundred rows.
        vocab_size: Size of the vocabulary in these tests, V.
        device: Device of the logits.
    """

    step_class: ClassVar[type[Sampler]]
    capabilities: ClassVar[SamplerCapabilities]
    active: ClassVar[Sequence[Mapping[str, Any]]]
    neutral: ClassVar[Mapping[str, Any]]
    num_counted_rows: ClassVar[int] = 20_000
    vocab_size: ClassVar[int] = 50
    device: ClassVar[str] = "cpu"

    def test_the_probe_returns_a_reason_or_none(self) -> None:
        """It is called in a fresh process, and must not import torch."""
        check_probe(self.capabilities.probe)

    def test_neutral_fields_are_called_neutral(self) -> None:
        """`is_neutral` is true of the neutral fields and false of the active examples."""
        step = self._step()
        assert step.is_neutral(self._full(self.neutral)), (
            f"is_neutral must be true of {self.neutral}"
        )
        for fields in self.active:
            assert not step.is_neutral(self._full(fields)), f"is_neutral must be false of {fields}"

    @pytest.mark.parametrize("all_greedy", [False, True])
    def test_neutral_rows_take_the_most_likely_token(self, all_greedy: bool) -> None:
        """Neutral rows take the most likely token, with and without `all_greedy`."""
        logits = self._logits()
        sampled = self._sample(logits, [self.neutral] * NUM_ROWS, all_greedy=all_greedy)
        assert torch.equal(sampled, logits.argmax(-1)), (
            f"rows with {self.neutral} and all_greedy={all_greedy} must take the most likely token"
        )

    def test_neutral_and_active_rows_share_a_batch(self) -> None:
        """Neutral rows take the most likely token beside random rows."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        sampled = self._sample(logits, fields)
        assert torch.equal(sampled[1::2], logits.argmax(-1)[1::2]), (
            f"rows with {self.neutral} must take the most likely token beside random rows"
        )

    def test_the_same_seed_samples_the_same_token(self) -> None:
        """Sample the same batch twice with one sampler."""
        step, logits = self._step(), self._logits()
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        assert torch.equal(step.sample(logits.clone(), rows), step.sample(logits.clone(), rows)), (
            "the same batch gives other tokens the second time: a sampler must have no state and "
            "no generator"
        )

    @pytest.mark.parametrize("varied", VARIED, ids=" and ".join)
    def test_seed_child_and_position_all_matter(self, varied: tuple[str, ...]) -> None:
        """Equal logits give many tokens if one source varies, or two with a constant sum."""
        self._check_many_tokens(self._step().sample, varied)

    def test_a_row_does_not_depend_on_the_others(self) -> None:
        """Compare rows in a batch with the same rows alone in another slot."""
        logits = self._logits()
        fields = [self._active(row) for row in range(NUM_ROWS)]
        seeds = [row * 7 for row in range(NUM_ROWS)]
        together = self._sample(logits, fields, seeds=seeds)
        for row in range(NUM_ROWS):
            alone = self._sample(
                logits[row : row + 1], [fields[row]], seeds=[seeds[row]], slots=[NUM_SLOTS - 1]
            )
            assert alone[0] == together[row], (
                f"the token of row {row} in a batch differs from that alone in another slot"
            )

    def test_rows_of_one_slot_have_their_own_positions(self) -> None:
        """Each of k rows of a request samples as it does alone, as with draft tokens."""
        self._check_rows_of_one_slot(self._step().sample)

    @pytest.mark.parametrize("varied", SOURCES)
    def test_tokens_occur_as_often_as_they_should(self, varied: str) -> None:
        """Compare the frequencies of tokens with `probabilities`, by a chi-square test."""
        for fields in self.active:
            self._check_frequencies(self._step().sample, fields, varied, self._logits(1))

    def probabilities(self, logits: Tensor, fields: Mapping[str, Any]) -> Tensor:  # [V] -> [V]
        """Return the probability of each token in a row with active fields."""
        del fields
        return logits.softmax(-1)

    def test_the_host_fields_are_only_a_hint(self) -> None:
        """Compare the tokens with and without `host_fields`."""
        logits = self._logits()
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        known = self._sample(logits, fields)
        assert torch.equal(known, self._sample(logits, fields, is_known_to_host=False)), (
            "the tokens differ if host_fields is empty"
        )

    def test_masked_tokens_are_never_sampled(self) -> None:
        """Sample with one or two allowed tokens; all of them occur, and no other."""
        for allowed in ([0], [self.vocab_size - 1], [3, 17]):
            logits = torch.full((NUM_SAMPLES, self.vocab_size), -torch.inf)
            logits[:, allowed] = 0.0
            fields = [self._active(0)] * NUM_SAMPLES
            sampled = set(self._sample(logits, fields, seeds=range(NUM_SAMPLES)).tolist())
            assert sampled == set(allowed), (
                f"equal logits for tokens {allowed} only must give all of these, got {sampled}"
            )

    def test_sampling_does_not_change_the_logits(self) -> None:
        """Steps that carry state observe the logits after the sampler."""
        logits = self._logits()
        given = logits.clone()
        self._step().sample(given, self._rows([self._active(row) for row in range(NUM_ROWS)]))
        assert torch.equal(given, logits), "sample must not change the logits"

    def test_one_token_a_row_comes_back(self) -> None:
        """`sample` returns `[N]` int64, all in the vocabulary."""
        sampled = self._sample(self._logits(), [self._active(row) for row in range(NUM_ROWS)])
        assert sampled.shape == (NUM_ROWS,), (
            f"sample must return shape {(NUM_ROWS,)}, got {tuple(sampled.shape)}"
        )
        assert sampled.dtype == torch.int64, f"sample must return int64, got {sampled.dtype}"
        self._check_token_ids(sampled)

    @pytest.mark.parametrize("all_greedy", [False, True])
    def test_the_best_token_of_all_shards_is_that_of_whole_rows(self, all_greedy: bool) -> None:
        """A sampler that declares `is_vocab_parallel` takes the same tokens from shards."""
        self._skip_unless_vocab_parallel()
        active = {} if all_greedy else {row: self._active(row) for row in range(0, NUM_ROWS, 2)}
        fields = [active.get(row, self.neutral) for row in range(NUM_ROWS)]
        rows = self._rows(fields, all_greedy=all_greedy)
        self._check_shards(self._step().sample_shard, self._step().sample, self._logits(), rows)

    def test_sampling_from_shards_does_not_wait_for_the_device(self) -> None:
        """No operator copies a value to the host or has a result whose size depends on data."""
        skip_without_device(self.capabilities)
        self._skip_unless_vocab_parallel()
        rows = self._rows([self._active(row) for row in range(NUM_ROWS)])
        step = self.step_class(self.vocab_size, META)
        run_without_data(step.sample_shard, self._logits(), rows)
        run_without_sync(self._step().sample_shard, self._logits(), rows)

    def test_nothing_waits_for_the_device(self) -> None:
        """No operator copies a value to the host or has a result whose size depends on data."""
        skip_without_device(self.capabilities)
        fields = [self.neutral if row % 2 else self._active(row) for row in range(NUM_ROWS)]
        for is_known in (True, False):
            rows = sampled_rows(
                self.capabilities, fields, is_known_to_host=is_known, vocab_size=self.vocab_size
            )
            step = self.step_class(self.vocab_size, META)
            run_without_data(step.sample, self._logits(), rows)
            run_without_sync(self._step().sample, self._logits(), rows)

    def _step(self) -> Sampler:
        return self.step_class(self.vocab_size, torch.device(self.device))

    def _active(self, row: int) -> Mapping[str, Any]:
        return self.active[row % len(self.active)]

    def _full(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {f.name: fields.get(f.name, f.worker_default) for f in self.capabilities.fields}

    def _logits(self, num_rows: int = NUM_ROWS) -> Tensor:
        """Return logits so even that random sampling rarely takes the most likely token."""
        return random_logits(num_rows, self.vocab_size, scale=1.0).to(self.device)

    def _rows(self, fields: Sequence[Mapping[str, Any]], **given: Any) -> SampledRows:
        return sampled_rows(
            self.capabilities, fields, device=self.device, vocab_size=self.vocab_size, **given
        )

    def _sample(self, logits: Tensor, fields: Sequence[Mapping[str, Any]], **given: Any) -> Tensor:
        return self._step().sample(logits.clone().to(self.device), self._rows(fields, **given))

    def _check_many_tokens(self, sample: SampleFunction, varied: Sequence[str]) -> None:
        rising = range(1, NUM_SAMPLES + 1)
        numbers: dict[str, Sequence[int]] = dict.fromkeys(SOURCES, [3] * NUM_SAMPLES)
        numbers |= dict(zip(varied, (rising, rising[::-1]), strict=False))
        even = torch.zeros(NUM_SAMPLES, self.vocab_size, device=self.device)
        rows = self._rows([self._active(0)] * NUM_SAMPLES, **numbers)
        num_tokens = len(set(sample(even, rows).tolist()))
        assert num_tokens > min(8, self.vocab_size // 2), (
            f"{NUM_SAMPLES} rows of equal logits, each with other {' and '.join(varied)}, give "
            f"only {num_tokens} different tokens"
        )

    def _check_rows_of_one_slot(self, sample: SampleFunction) -> None:
        logits, num_own = self._logits(), NUM_ROWS // 2
        for fields in (*self.active, self.neutral):
            positions = [at for own in range(num_own) for at in (3 + own, 20)]
            both = self._rows(
                [fields] * NUM_ROWS, slots=[5, 9] * num_own, seeds=[3, 4] * num_own,
                positions=positions,
            )  # fmt: skip
            together = sample(logits.clone(), both)
            for row in range(0, NUM_ROWS, 2):
                alone = self._rows([fields], seeds=[3], positions=[positions[row]])
                assert torch.equal(
                    sample(logits[row : row + 1].clone(), alone)[0], together[row]
                ), (
                    f"with {fields} the token at position {positions[row]} changes beside other "
                    "rows of its slot"
                )

    def _check_frequencies(
        self,
        sample: SampleFunction,
        fields: Mapping[str, Any],
        varied: str,
        processed: Tensor,  # [1, V], logits from which the expected probabilities follow
    ) -> None:
        if not self.num_counted_rows:
            pytest.skip("num_counted_rows is 0, so no samples are counted")
        rows = repeated_row(self._rows([fields]), self.num_counted_rows, varied)
        sampled = sample(self._logits(1).repeat(self.num_counted_rows, 1), rows)
        probs = self.probabilities(processed[0], fields)
        check_frequencies(
            sampled, probs, f"{self.num_counted_rows} rows with {fields} and other {varied} each"
        )

    def _skip_unless_vocab_parallel(self) -> None:
        if not self.capabilities.is_vocab_parallel:
            pytest.skip("the sampler does not declare is_vocab_parallel")

    def _check_shards(
        self, sample_shard: SampleShard, sample: SampleFunction, logits: Tensor, rows: SampledRows
    ) -> None:
        """Compare the best tokens of shards with those of whole rows, some with ties or NaN."""
        logits[::3] = logits[::3].round()
        logits[1, self.vocab_size // 2] = torch.nan
        logits[2, :] = -torch.inf
        is_invalid = torch.tensor([row in (1, 2) for row in range(len(logits))])
        expected = sample(logits.clone(), rows)
        for split in vocabulary_splits(self.vocab_size):
            found = [
                self._checked_shard(sample_shard, *shard_of(logits, rows, token_ids), token_ids)
                for token_ids in split
            ]
            scores, token_ids = (torch.stack(each) for each in zip(*found, strict=True))
            best = scores.argmax(0, keepdim=True)  # of equal ones the first
            is_finite = scores.gather(0, best)[0].isfinite().cpu()
            assert torch.equal(token_ids.gather(0, best)[0], expected), (
                f"the tokens with the largest scores of the shards {split} must be those of whole "
                f"rows, {expected.tolist()}, got {token_ids.gather(0, best)[0].tolist()}"
            )
            assert torch.equal(is_finite, ~is_invalid), (
                "a score must be finite, except in rows with a NaN logit or without any finite one"
            )

    def _checked_shard(
        self, sample_shard: SampleShard, logits: Tensor, rows: SampledRows, token_ids: range
    ) -> tuple[Tensor, Tensor]:
        scores, sampled = sample_shard(logits, rows)
        for result, dtype in ((scores, torch.float32), (sampled, torch.int64)):
            assert result.shape == (len(logits),), (
                f"a shard must give scores and token ids of shape {(len(logits),)}, got "
                f"{tuple(result.shape)}"
            )
            assert result.dtype == dtype, f"a shard must give {dtype}, got {result.dtype}"
        ids = sampled.tolist()
        assert token_ids.start <= min(ids) <= max(ids) < token_ids.stop, (
            f"a shard of the tokens from {token_ids.start} to {token_ids.stop - 1} gives {ids}"
        )
        return scores, sampled

    def _check_token_ids(self, sampled: Tensor) -> None:
        ids = sampled.tolist()
        assert 0 <= min(ids) <= max(ids) < self.vocab_size, (
            f"all token ids must be from 0 to {self.vocab_size - 1}, got {ids}"
        )


class FusedSamplerContract(SamplerContract):
    """Tests that a sampler with fused logits processors must pass.

    Attributes:
        fused: Logits processors that it fuses, in pipeline order.
        mixed: Examples of request fields that need some of them.
    """

    fused: ClassVar[Sequence[type[LogitsProcessor]]]
    mixed: ClassVar[Sequence[Mapping[str, Any]]]

    def test_it_samples_the_same_as_after_the_processors(self) -> None:
        """Compare `sample_fused` with the logits processors and `sample`, for all kinds of rows."""
        logits, fields = self._given()
        numbers = range(len(fields))
        rows = self._rows(fields, children=numbers, positions=numbers[::-1])
        fusing = self._step().sample_fused(logits.clone(), rows)
        stepwise = self._step().sample(self._processed(logits, rows), rows)
        differing = [fields[row] for row in (fusing != stepwise).nonzero().flatten().tolist()]
        assert not differing, (
            f"sample_fused must sample the same tokens as the separate steps, but differs for "
            f"{differing}"
        )

    def test_the_best_token_of_all_shards_is_that_of_fused_sampling(self) -> None:
        """`sample_shard_fused` gives the tokens of `sample_fused`, for rows without filters."""
        self._skip_unless_vocab_parallel()
        logits = self._logits()
        kinds = (self.neutral, *self.active)
        rows = self._rows(
            [kinds[row % len(kinds)] for row in range(NUM_ROWS)], is_known_to_host=False
        )
        step, given = self._step(), logits.clone()
        self._check_shards(step.sample_shard_fused, step.sample_fused, logits, rows)
        step.sample_shard_fused(given, rows)
        assert torch.equal(given, self._logits()), "sample_shard_fused must not change the logits"

    @pytest.mark.parametrize("varied", VARIED, ids=" and ".join)
    def test_seed_child_and_position_all_matter_to_fused_sampling(
        self, varied: tuple[str, ...]
    ) -> None:
        """The sources of randomness matter to `sample_fused` as they do to `sample`."""
        self._check_many_tokens(self._step().sample_fused, varied)

    def test_rows_of_one_slot_have_their_own_positions_in_fused_sampling(self) -> None:
        """Each of k rows of a request samples as it does alone, as with draft tokens."""
        self._check_rows_of_one_slot(self._step().sample_fused)

    def test_fused_tokens_occur_as_often_as_they_should(self) -> None:
        """Compare the frequencies with `probabilities` after the logits processors."""
        kinds = [
            fields
            for fields in (*self.active, *self.mixed)
            if not self._step().is_neutral(self._full(fields))
        ]
        for fields in kinds:
            processed = self._processed(self._logits(1), self._rows([fields]))
            self._check_frequencies(self._step().sample_fused, fields, "seeds", processed)

    def test_fused_sampling_needs_nothing_from_the_host(self) -> None:
        """`sample_fused` does not depend on `host_fields`, and does not change the logits."""
        logits, fields = self._given()
        given = logits.clone()
        sampled = self._step().sample_fused(given, self._rows(fields))
        unknown = self._rows(fields, is_known_to_host=False)
        assert torch.equal(given, logits), "sample_fused must not change the logits"
        assert torch.equal(sampled, self._step().sample_fused(given, unknown)), (
            "the tokens differ if host_fields is empty, as in a captured graph"
        )

    def test_fused_sampling_treats_each_row_alone(self) -> None:
        """Compare rows in a batch with the same rows beside padding rows, which share a slot."""
        logits, fields = self._given()
        together = self._step().sample_fused(logits, self._rows(fields))
        padding = len(fields)  # a slot that no request has
        for row in range(NUM_ROWS):
            padded = self._rows(
                [fields[row], {}, {}], seeds=[row, 0, 0], slots=[row, padding, padding]
            )
            sampled = self._step().sample_fused(logits[[row, 0, 1]], padded)
            assert sampled[0] == together[row], (
                f"the token of row {row} in a batch differs from that beside padding rows"
            )
            self._check_token_ids(sampled)

    def test_a_nan_logit_is_sampled_in_its_row_only(self) -> None:
        """A row with a NaN logit samples it, so that the worker can fail that request alone."""
        logits, fields = self._given()
        rows = self._rows(fields)
        expected = self._step().sample_fused(logits, rows)
        for row in range(0, len(fields), 2):
            token_id = (3 + row) % self.vocab_size
            logits[row, token_id], expected[row] = torch.nan, token_id
        sampled = self._step().sample_fused(logits, rows)
        assert torch.equal(sampled[::2], expected[::2]), (
            f"rows with a NaN logit must sample its token {expected[::2].tolist()}, "
            f"got {sampled[::2].tolist()}"
        )
        assert torch.equal(sampled[1::2], expected[1::2]), (
            "a NaN logit changes the tokens of other rows"
        )

    def test_a_row_without_a_token_still_gives_an_id(self) -> None:
        """A row whose logits are all -inf gives a valid id and does not affect other rows."""
        logits, fields = self._given()
        rows = self._rows(fields)
        expected = self._step().sample_fused(logits, rows)
        logits[::3] = -torch.inf
        sampled = self._step().sample_fused(logits, rows)
        self._check_token_ids(sampled)
        assert torch.equal(sampled[1::3], expected[1::3]), (
            "a row whose logits are all -inf changes the tokens of other rows"
        )

    def test_fused_sampling_does_not_wait_for_the_device(self) -> None:
        """No operator copies a value to the host or has a result whose size depends on data."""
        skip_without_device(self.capabilities)
        logits, fields = self._given()
        rows = sampled_rows(
            self.capabilities, fields, is_known_to_host=False, vocab_size=self.vocab_size
        )
        step = self.step_class(self.vocab_size, META)
        run_without_data(step.sample_fused, logits, rows)
        run_without_sync(self._step().sample_fused, logits, rows)

    def _given(self) -> tuple[Tensor, list[Mapping[str, Any]]]:
        """Return logits and fields of a batch with each kind of row."""
        kinds = (self.neutral, *self.active, *self.mixed)
        num_rows = max(NUM_ROWS, len(kinds))
        return self._logits(num_rows), [kinds[row % len(kinds)] for row in range(num_rows)]

    def _processed(self, logits: Tensor, rows: SampledRows) -> Tensor:
        logits = logits.clone()
        for step_class in self.fused:
            step = step_class(self.vocab_size, torch.device(self.device))
            logits = step.apply(logits, rows)
        return logits
