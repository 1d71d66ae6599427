"""Sampling pipeline: logit masks, logits processors and the sampler over the rows of a step.

A logits processor runs only if a row of the batch needs it. Masks of grammars and of `min_tokens`
come first; log probabilities are computed from the model's own logits, or from those after all
steps. A sampler may fuse the processors before it, and a batch that needs nothing else can be
sampled by a CUDA graph. Nothing here waits for the device.

With tensor parallelism each device has the logits of its shard of the vocabulary. If all steps that
a batch needs work on a shard, each device samples from its own, and the devices exchange only the
best score and token of each row. Otherwise they gather the logits. The tokens are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler, Stage
from quire.layers.parallel import SingleDevice
from quire.layers.returned import check_returned
from quire.layers.vocabulary import VocabularyShard
from quire.messages import RowBitmask
from quire.native.layer_kernels import cpu_steps
from quire.worker.batch.slots import SlotInfo, SlotTables
from quire.worker.device.copies import upload
from quire.worker.sampling.carried_state import StatefulStep, StatefulSteps
from quire.worker.sampling.logit_masks import LogitMasks
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens, pack_tokens
from quire.worker.sampling.sampling_needs import SamplingNeeds
from quire.worker.sampling.step_errors import step_error
from quire.worker.sampling.token_counts import TokenCounts

SampleFunction = Callable[[Tensor, SampledRows], Tensor]
PackTokens = Callable[[Tensor, Tensor], Tensor]
SampleShard = Callable[[Tensor, SampledRows], tuple[Tensor, Tensor]]
KEEP_ORDER: tuple[Stage, ...] = ("temperature", "filter")


@dataclass(slots=True)
class _LogprobRows:
    """The rows of a batch that need log probabilities, and their logits once taken.

    Attributes:
        index: Indexes of the rows, `[R]` int64.
        logits: Their logits over the whole vocabulary, `[R, V]` float32.
    """

    index: Tensor
    logits: Tensor | None = None

    def take(self, logits: Tensor, shard: VocabularyShard | None) -> None:
        """Copy their logits, gathered from all shards."""
        rows = logits.index_select(0, self.index)
        self.logits = rows if shard is None else shard.gather(rows)


class SamplingPipeline:
    """Logits processors in order, and the sampler as the last step.

    Args:
        steps: Logits processors, each with its stage.
        sampler: Sampler.
        tables: Slot tables with the sampler fields.
        names: Name of each step and its plugin for error messages, that of the sampler last.
        fused: Indexes of the steps that the sampler can fuse, all in one pass; see
            `sampler_choice.fused_steps`.
        kernels: Kernels that the masks use: "torch", "triton" or "native".
        vocabulary: This device's shard of the vocabulary; None: the whole vocabulary.
        vocab_parallel: Indexes of the steps that work on a shard of the vocabulary; the sampler
            has the last index.
        counting: Indexes of the steps that read the counts of sampled tokens.
        states: Names of the states that steps carry, by the index of the step.
        logprobs_mode: Values that are reported as log probabilities, one of
            `config.LOGPROBS_MODES`.

    Attributes:
        vocabulary: This device's shard of the vocabulary.
        reports_logits: Whether log probabilities are logits, by the setting.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Stage, LogitsProcessor]],
        sampler: Sampler,
        tables: SlotTables,
        names: Sequence[str],
        *,
        fused: Sequence[int] = (),
        kernels: str = "torch",
        vocabulary: VocabularyShard | None = None,
        vocab_parallel: Sequence[int] = (),
        counting: Sequence[int] = (),
        states: Mapping[int, Sequence[str]] = MappingProxyType({}),
        logprobs_mode: str = "raw_logprobs",
    ) -> None:
        self.vocabulary = vocabulary or VocabularyShard(sampler.vocab_size, SingleDevice())
        self.steps = [step for _, step in steps]
        self.sampler = sampler
        self.tables = tables
        self._names = names
        self._masks = LogitMasks(tables, kernels)
        self._pack: PackTokens = pack_tokens
        if kernels == "native":
            self._pack = cpu_steps.PackTokens()
        self._counts = TokenCounts(tables, sampler.vocab_size)
        self._counting = sum(1 << index for index in counting)
        self._stateful = StatefulSteps(
            [
                StatefulStep(index, self.steps[index], tuple(own), names[index])
                for index, own in sorted(states.items())
            ]
        )
        self._sampler_bit = 1 << len(steps)
        self._all_steps = self._sampler_bit - 1
        keeping_order = sum(1 << i for i, (stage, _) in enumerate(steps) if stage in KEEP_ORDER)
        self._steps_for_greedy = self._all_steps & ~keeping_order
        self._fused = sum(1 << index for index in fused)
        self._not_fused = self._all_steps & ~self._fused  # the sampler cannot fuse these
        whole_row_steps = self._all_steps | self._sampler_bit
        whole_row_steps &= ~sum(1 << index for index in vocab_parallel)
        self._whole_row_steps = 0 if self.vocabulary.is_whole else whole_row_steps
        self._before_fused = (1 << min(fused, default=0)) - 1
        self.reports_logits = logprobs_mode.endswith("_logits")
        self._reports_processed = logprobs_mode.startswith("processed_")
        self._last_infos: list[SlotInfo | None] = []
        self._last_needs = SamplingNeeds.of((), (), tables.device)

    @property
    def sampler_name(self) -> str:
        """Name of the sampler and its plugin, for error messages."""
        return self._names[-1]

    def active_steps(self, fields: Mapping[str, Any], *, has_logprobs: bool = False) -> int:
        """Return the bits of the steps that a request with these fields needs.

        Temperature and filters do not change the most likely token, so a greedy request needs none
        of them, unless its log probabilities are those after all steps.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        index = len(self.steps)
        try:
            is_greedy = self.sampler.is_neutral(fields)
            active = 0 if is_greedy else self._sampler_bit
            is_top_enough = is_greedy and not (has_logprobs and self._reports_processed)
            asked = self._steps_for_greedy if is_top_enough else self._all_steps
            for index, step in enumerate(self.steps):
                if asked >> index & 1 and not step.is_neutral(fields):
                    active |= 1 << index
        except Exception as error:
            raise self._step_error(index, error) from error
        return active

    def initial_state(self, active: int, fields: Mapping[str, Any]) -> dict[str, float]:
        """Return the states of a request before its first token, by name.

        Args:
            active: Bits of the steps that it needs.
            fields: Its sampler fields.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        return self._stateful.initial(active, fields)

    def is_fused(self, slots: Sequence[int], masks: Sequence[RowBitmask]) -> bool:
        """Whether `sample_fused` alone does all that these rows need."""
        if masks or not self._fused or self._whole_row_steps & self._sampler_bit:
            return False
        not_captured = self._not_fused | self._whole_row_steps
        for slot in slots:
            info = self.tables.info_of(slot)
            if info.active_steps & not_captured or info.num_logprobs is not None:
                return False
            if info.min_tokens and self._masks.is_too_short(slot):
                return False
        return True

    @torch.inference_mode()
    def sample_fused(self, logits: Tensor, rows: SampledRows) -> SampledTokens:  # [N, M] float32
        """Sample one token per row with all steps fused; the logits are not changed.

        They are those of this device's shard of the vocabulary.

        Uses no host-side values, so a CUDA graph may capture it; every replay then overwrites the
        returned tensors.

        Raises:
            RequestFailedError: The sampler fails; the message names its plugin.
        """
        if self.vocabulary.is_whole:
            return self._sample_fused(logits, rows)
        return self._best_of_shards(self.sampler.sample_shard_fused, logits, self._in_shard(rows))

    def run(
        self,
        logits: Tensor,  # [N, M], of this device's shard of the vocabulary; may be written in place
        slots: Sequence[int],
        slot_index: Tensor,  # [N] int64, the same on the device
        masks: Sequence[RowBitmask],
    ) -> SampledTokens:
        """Sample one token per row. To be called in inference mode.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        needs = self._needs_of(slots)
        shard = self._shard_for(needs.active)
        logits = (self.vocabulary.gather(logits) if shard is None else logits).float()
        reported, after_steps = None, None
        if needs.logprob_rows:
            reported = _LogprobRows(upload(np.array(needs.logprob_rows), logits.device))
            if self._reports_processed:
                after_steps = reported
            else:
                reported.take(logits, shard)  # before any change
        self._mask(logits, slots, masks, needs, shard)
        num_known = self.tables.num_known[np.asarray(slots)]
        rows = self.tables.sampled_rows(
            slot_index,
            upload(num_known, slot_index.device),
            needs.fields,
            all_greedy=not needs.active & self._sampler_bit,
            max_position=int(num_known.max(initial=0)),
        )
        if needs.pairs is not None:
            pairs = needs.pairs
            rows = replace(rows, guided=pairs.guided, companions=pairs.companions)
        if needs.active & self._counting:
            counts, num_counted = self._counts.update(slots)
            rows = replace(rows, output_counts=counts, num_counted=num_counted)
        if shard is None:
            sampled = self._sample_whole(logits, rows, needs, after_steps)
        else:
            sampled = self._sample_shard(logits, self._in_shard(rows), needs.active, after_steps)
        if reported is not None and reported.logits is not None:
            sampled.logprobs = row_logprobs(
                reported.logits,
                sampled.token_ids[reported.index],
                needs.num_logprobs,
                needs.named,
                as_logits=self.reports_logits,
            )
        if needs.pairs is not None:
            sampled.packed = sampled.packed.index_select(1, needs.pairs.sources)
        return sampled

    @torch.inference_mode()
    def warm_up(self, logits: Tensor) -> list[SampledTokens]:  # [N, M], as in `run`
        """Sample for the padding slot by every method, and return the tokens of each method.

        This compiles all kernels, and finds parts that fail for every request.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        padding_slot = self.tables.padding_slot
        slots = [padding_slot] * len(logits)
        index = upload(np.array(slots), logits.device)
        fields = {field.name: field.worker_default for field in self.tables.fields}
        self.active_steps(fields)
        self.tables.states.write(padding_slot, self.initial_state(self._all_steps, fields))
        self.tables.states.push()
        positions, each = torch.ones_like(index), [fields] * len(slots)  # a prompt of one token
        rows = self.tables.sampled_rows(index, positions, each, max_position=1)
        every_row = upload(np.arange(len(slots)), logits.device)
        rows = replace(rows, guided=every_row, companions=every_row)
        sampled = [] if self.vocabulary.is_whole else self._warm_up_shard(logits.float(), rows)
        logits = self.vocabulary.gather(logits).float()
        best = logits.amax(-1)  # not gathered by id: an invalid id would fail the device
        token_ids = [self._run_sampler(self.sampler.sample, logits, replace(rows, all_greedy=True))]
        if self._fused:
            token_ids.append(self._run_sampler(self.sampler.sample_fused, logits, rows))
        every_token = RowBitmask(padding_slot, 0, b"\xff" * (4 * -(-logits.shape[1] // 32)))
        self._masks.mask_grammars(logits, slots, [every_token])
        logits = self._apply(logits, rows, self._all_steps)
        token_ids.append(self._run_sampler(self.sampler.sample, logits, rows))
        sampled += [SampledTokens.of(each, best, logits.shape[1]) for each in token_ids]
        if self._stateful.bits:
            active_each = [self._all_steps] * len(slots)
            sampled[-1].states = self._stateful.observe(active_each, logits, rows, token_ids[-1])
        return sampled

    def _warm_up_shard(self, logits: Tensor, rows: SampledRows) -> list[SampledTokens]:
        """Sample from the shard of this device by every method; the logits are not changed."""
        rows = self._in_shard(rows)
        sampled = [self._sample_shard(logits.clone(), replace(rows, all_greedy=True), 0)]
        if not self._whole_row_steps & self._sampler_bit:
            steps = self._all_steps & ~self._whole_row_steps
            sampled.append(self._sample_shard(logits.clone(), rows, steps))
            if self._fused:
                sampled.append(self._best_of_shards(self.sampler.sample_shard_fused, logits, rows))
        return sampled

    def _shard_for(self, active: int) -> VocabularyShard | None:
        """Return the shard to sample from if all active steps work on one; None for whole rows."""
        if self.vocabulary.is_whole or active & self._whole_row_steps:
            return None
        return self.vocabulary

    def _in_shard(self, rows: SampledRows) -> SampledRows:
        return replace(rows, first_token_id=self.vocabulary.token_ids.start)

    def _mask(
        self,
        logits: Tensor,  # [N, M] float32, in place
        slots: Sequence[int],
        masks: Sequence[RowBitmask],
        needs: SamplingNeeds,
        shard: VocabularyShard | None,
    ) -> None:
        """Mask what `min_tokens` and grammars forbid."""
        if needs.has_min_tokens:
            self._masks.mask_stops(logits, slots, {mask.slot for mask in masks}, shard)
        if masks:
            self._masks.mask_grammars(logits, slots, masks, shard)

    def _needs_of(self, slots: Sequence[int]) -> SamplingNeeds:
        """Return the sampling needs of the rows, cached while the requests stay the same."""
        infos = [self.tables.info[slot] for slot in slots]
        if infos != self._last_infos:
            known = [self.tables.info_of(slot) for slot in slots]
            self._last_needs = SamplingNeeds.of(slots, known, self.tables.device)
            self._last_infos = infos
        return self._last_needs

    def _can_fuse(self, active: int) -> bool:
        """Whether the rows sample at random, and all active steps are fused or before those.

        None of them may carry state: it depends on the logits that the sampler gets.
        """
        is_random = bool(active & self._sampler_bit) and bool(self._fused)
        is_random &= not active & self._stateful.bits
        return is_random and not active & self._not_fused & ~self._before_fused

    def _sample_whole(
        self,
        logits: Tensor,
        rows: SampledRows,
        needs: SamplingNeeds,
        reported: _LogprobRows | None,
    ) -> SampledTokens:
        """Sample from whole rows; `reported` takes its logits after all steps."""
        if reported is None and self._can_fuse(needs.active):
            logits = self._apply(logits, rows, needs.active & self._before_fused)
            return self._sample_fused(logits, rows)
        return self._sample_unfused(logits, rows, needs, reported)

    def _sample_shard(
        self,
        logits: Tensor,
        rows: SampledRows,
        active: int,
        reported: _LogprobRows | None = None,
    ) -> SampledTokens:
        """Sample from this device's shard, and take the best token of all shards."""
        if reported is None and self._can_fuse(active):
            logits = self._apply(logits, rows, active & self._before_fused)
            return self._best_of_shards(self.sampler.sample_shard_fused, logits, rows)
        logits = self._apply(logits, rows, active)
        if reported is not None:
            reported.take(logits, self.vocabulary)
        if self._whole_row_steps & self._sampler_bit:  # all rows are greedy
            return self._best_of_shards(most_likely, logits, rows)
        return self._best_of_shards(self.sampler.sample_shard, logits, rows)

    def _best_of_shards(
        self, sample: SampleShard, logits: Tensor, rows: SampledRows
    ) -> SampledTokens:
        """Call a method that samples from a shard, and take the best token of all shards.

        Raises:
            RequestFailedError: It fails, or returns something other than scores and token ids.
        """
        try:
            scores, token_ids = sample(logits, rows)
        except Exception as error:
            raise self._step_error(len(self.steps), error) from error
        shape, device = logits.shape[:1], logits.device
        check_returned(scores, shape, torch.float32, device, f"{self._names[-1]}, for scores,")
        check_returned(token_ids, shape, torch.int64, device, self._names[-1])
        scores, token_ids = self.vocabulary.best(scores, token_ids)
        return SampledTokens.of(token_ids, scores, self.vocabulary.vocab_size)

    def _sample_fused(self, logits: Tensor, rows: SampledRows) -> SampledTokens:
        token_ids = self._run_sampler(self.sampler.sample_fused, logits, rows)
        return self._with_logits(logits, token_ids)

    def _sample_unfused(
        self,
        logits: Tensor,
        rows: SampledRows,
        needs: SamplingNeeds,
        reported: _LogprobRows | None,
    ) -> SampledTokens:
        active = needs.active
        best = None if rows.all_greedy else logits.amax(-1)  # [N]; NaN if any logit is NaN
        logits = self._apply(logits, rows, active)
        if best is not None and active & self._all_steps:
            left = logits.amax(-1)  # [N]; -inf if the steps have left no token
            best = torch.where(left.isfinite(), best, left)
        if reported is not None:
            reported.take(logits, None)
        token_ids = self._run_sampler(self.sampler.sample, logits, rows)
        if best is None:  # greedy: the chosen logit is the largest, no second pass over the logits
            sampled = self._with_logits(logits, token_ids)
        else:
            sampled = SampledTokens.of(token_ids, best, logits.shape[1])
        if active & self._stateful.bits:
            sampled.states = self._stateful.observe(needs.active_each, logits, rows, token_ids)
        return sampled

    def _with_logits(self, logits: Tensor, token_ids: Tensor) -> SampledTokens:
        try:
            return SampledTokens(self._pack(logits, token_ids), logits.shape[1])
        except RuntimeError as error:  # an id out of range; raised at once on a CPU
            raise self._step_error(len(self.steps), error) from error

    def _run_sampler(
        self, sample: SampleFunction, logits: Tensor, rows: SampledRows
    ) -> Tensor:  # [N] int64
        """Call a method of the sampler, and check the token ids that it returns.

        Raises:
            RequestFailedError: The sampler fails, or returns something other than `[N]` int64.
        """
        try:
            token_ids = sample(logits, rows)
        except Exception as error:
            raise self._step_error(len(self.steps), error) from error
        check_returned(token_ids, logits.shape[:1], torch.int64, logits.device, self._names[-1])
        return token_ids

    def _apply(self, logits: Tensor, rows: SampledRows, active: int) -> Tensor:
        """Run the active logits processors, and check the result of each.

        Raises:
            RequestFailedError: A step fails, or returns something other than `[N, V]` float32.
        """
        shape, device = logits.shape, logits.device
        for index, step in enumerate(self.steps):
            if active >> index & 1:
                try:
                    logits = step.apply(logits, rows)
                except Exception as error:
                    raise self._step_error(index, error) from error
                check_returned(logits, shape, torch.float32, device, self._names[index])
        return logits

    def _step_error(self, index: int, error: Exception) -> RequestFailedError:
        """Return the error of a failed step, with its name."""
        return step_error(self._names[index], error)


def most_likely(
    logits: Tensor,  # [N, M] float32
    rows: SampledRows,
) -> tuple[Tensor, Tensor]:  # [N] float32, [N] int64
    """Return the largest logit of each row in a shard, and its token id; NaN is the largest."""
    best, columns = logits.max(-1)
    return best, columns + rows.first_token_id
