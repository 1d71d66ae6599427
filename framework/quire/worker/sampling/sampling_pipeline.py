"""Sampling pipeline: logit masks, logits processors and the sampler over the rows of a step.

A logits processor runs only if a row of the batch needs it. Masks of grammars and of `min_tokens`
come first; log probabilities are computed from the model's own logits. A sampler may fuse the
processors before it, and a batch that needs nothing else can be sampled by a CUDA graph. Nothing
here waits for the device.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler, Stage
from quire.layers.returned import check_returned
from quire.messages import RowBitmask
from quire.worker.batch.slots import SlotInfo, SlotTables
from quire.worker.device.copies import upload
from quire.worker.sampling.logit_masks import LogitMasks
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens

SampleFunction = Callable[[Tensor, SampledRows], Tensor]
KEEP_ORDER: tuple[Stage, ...] = ("temperature", "filter")


@dataclass(frozen=True, slots=True)
class _SamplingNeeds:
    """Sampling needs of the requests of a batch.

    Attributes:
        active: Bits of the pipeline steps that some request needs.
        fields: Sampler fields of each request.
        num_logprobs: Number of log probabilities for each request; None for no log probabilities.
        logprob_rows: Rows that need log probabilities.
        has_min_tokens: Whether some request has `min_tokens`.
    """

    active: int
    fields: Sequence[Mapping[str, Any]]
    num_logprobs: Sequence[int | None]
    logprob_rows: Sequence[int]
    has_min_tokens: bool

    @classmethod
    def of(cls, infos: Sequence[SlotInfo]) -> _SamplingNeeds:
        """Return the combined needs of the requests in some slots."""
        num_logprobs = [info.num_logprobs for info in infos]
        return cls(
            active=functools.reduce(operator.or_, (info.active_steps for info in infos), 0),
            fields=[info.fields for info in infos],
            num_logprobs=num_logprobs,
            logprob_rows=[row for row, count in enumerate(num_logprobs) if count is not None],
            has_min_tokens=any(info.min_tokens for info in infos),
        )


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
    ) -> None:
        self.steps = [step for _, step in steps]
        self.sampler = sampler
        self.tables = tables
        self._names = names
        self._masks = LogitMasks(tables, kernels)
        self._sampler_bit = 1 << len(steps)
        self._all_steps = self._sampler_bit - 1
        keeping_order = sum(1 << i for i, (stage, _) in enumerate(steps) if stage in KEEP_ORDER)
        self._steps_for_greedy = self._all_steps & ~keeping_order
        self._fused = sum(1 << index for index in fused)
        self._not_fused = self._all_steps & ~self._fused  # the sampler cannot fuse these
        self._before_fused = (1 << min(fused, default=0)) - 1
        self._last_infos: list[SlotInfo | None] = []
        self._last_needs = _SamplingNeeds.of(())

    @property
    def sampler_name(self) -> str:
        """Name of the sampler and its plugin, for error messages."""
        return self._names[-1]

    def active_steps(self, fields: Mapping[str, Any]) -> int:
        """Return the bits of the steps that a request with these fields needs.

        Temperature and filters do not change the most likely token, so a greedy request needs none
        of them.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        index = len(self.steps)
        try:
            is_greedy = self.sampler.is_neutral(fields)
            active = 0 if is_greedy else self._sampler_bit
            asked = self._steps_for_greedy if is_greedy else self._all_steps
            for index, step in enumerate(self.steps):
                if asked >> index & 1 and not step.is_neutral(fields):
                    active |= 1 << index
        except Exception as error:
            raise self._step_error(index, error) from error
        return active

    def is_fused(self, slots: Sequence[int], masks: Sequence[RowBitmask]) -> bool:
        """Whether `sample_fused` alone does all that these rows need."""
        if masks or not self._fused:
            return False
        for slot in slots:
            info = self.tables.info_of(slot)
            if info.active_steps & self._not_fused or info.num_logprobs is not None:
                return False
            if info.min_tokens and self._masks.is_too_short(slot):
                return False
        return True

    @torch.inference_mode()
    def sample_fused(self, logits: Tensor, rows: SampledRows) -> SampledTokens:  # [N, V] float32
        """Sample one token per row with all steps fused; the logits are not changed.

        Uses no host-side values, so a CUDA graph may capture it; every replay then overwrites the
        returned tensors.

        Raises:
            RequestFailedError: The sampler fails; the message names its plugin.
        """
        return self._sample_fused(logits, rows)

    def run(
        self,
        logits: Tensor,  # [N, V] float32; written in place
        slots: Sequence[int],
        slot_index: Tensor,  # [N] int64, the same on the device
        masks: Sequence[RowBitmask],
    ) -> SampledTokens:
        """Sample one token per row. To be called in inference mode.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        needs = self._needs_of(slots)
        active, row_index = needs.active, None
        if needs.logprob_rows:
            row_index = upload(np.array(needs.logprob_rows), logits.device)
        raw = None if row_index is None else logits.index_select(0, row_index)  # before any change
        if needs.has_min_tokens:
            self._masks.mask_stops(logits, slots, {mask.slot for mask in masks})
        if masks:
            self._masks.mask_grammars(logits, slots, masks)
        positions = upload(self.tables.num_known[np.asarray(slots)], slot_index.device)
        is_greedy = not active & self._sampler_bit
        rows = self.tables.sampled_rows(slot_index, positions, needs.fields, all_greedy=is_greedy)
        if self._can_fuse(active):
            logits = self._apply(logits, rows, active & self._before_fused)
            sampled = self._sample_fused(logits, rows)
        else:
            sampled = self._sample_unfused(logits, rows, active)
        if row_index is not None and raw is not None:
            sampled.logprobs = row_logprobs(raw, sampled.token_ids[row_index], needs.num_logprobs)
        return sampled

    @torch.inference_mode()
    def warm_up(self, logits: Tensor) -> list[SampledTokens]:  # [N, V] float32; written in place
        """Sample for the padding slot by every method, and return the tokens of each method.

        This compiles all kernels, and finds parts that fail for every request.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        padding_slot = self.tables.padding_slot
        slots = [padding_slot] * len(logits)
        index = upload(np.array(slots), logits.device)
        fields = {field.name: field.default for field in self.tables.fields}
        self.active_steps(fields)
        positions, each = torch.ones_like(index), [fields] * len(slots)  # a prompt of one token
        rows = self.tables.sampled_rows(index, positions, each)
        best = logits.amax(-1)  # not gathered by id: an invalid id would fail the device
        token_ids = [self._run_sampler(self.sampler.sample, logits, replace(rows, all_greedy=True))]
        if self._fused:
            token_ids.append(self._run_sampler(self.sampler.sample_fused, logits, rows))
        every_token = RowBitmask(padding_slot, 0, b"\xff" * (4 * -(-logits.shape[1] // 32)))
        self._masks.mask_grammars(logits, slots, [every_token])
        logits = self._apply(logits, rows, self._all_steps)
        token_ids.append(self._run_sampler(self.sampler.sample, logits, rows))
        return [SampledTokens.of(each, best, logits.shape[1]) for each in token_ids]

    def _needs_of(self, slots: Sequence[int]) -> _SamplingNeeds:
        """Return the sampling needs of the rows, cached while the requests stay the same."""
        infos = [self.tables.info[slot] for slot in slots]
        if infos != self._last_infos:
            self._last_needs = _SamplingNeeds.of([self.tables.info_of(slot) for slot in slots])
            self._last_infos = infos
        return self._last_needs

    def _can_fuse(self, active: int) -> bool:
        """Whether the rows sample at random, and all active steps are fused or before those."""
        is_random = bool(active & self._sampler_bit) and bool(self._fused)
        return is_random and not active & self._not_fused & ~self._before_fused

    def _sample_fused(self, logits: Tensor, rows: SampledRows) -> SampledTokens:
        token_ids = self._run_sampler(self.sampler.sample_fused, logits, rows)
        return self._with_logits(logits, token_ids)

    def _sample_unfused(self, logits: Tensor, rows: SampledRows, active: int) -> SampledTokens:
        best = None if rows.all_greedy else logits.amax(-1)  # [N]; NaN if any logit is NaN
        logits = self._apply(logits, rows, active)
        token_ids = self._run_sampler(self.sampler.sample, logits, rows)
        if best is None:  # greedy: the chosen logit is the largest, no second pass over the logits
            return self._with_logits(logits, token_ids)
        return SampledTokens.of(token_ids, best, logits.shape[1])

    def _with_logits(self, logits: Tensor, token_ids: Tensor) -> SampledTokens:
        try:
            return SampledTokens.from_logits(logits, token_ids)
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
        return RequestFailedError(f"{self._names[index]} failed: {type(error).__name__}")
