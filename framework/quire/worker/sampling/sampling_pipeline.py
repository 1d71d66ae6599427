"""Draw tokens: run the composed pipeline over the rows of a step.

A step of the pipeline runs only when a row of the batch needs it. Masks of grammars and of
`min_tokens` come first; log probabilities are those of the model, before any step. A draw that can
do the steps before it does, and a batch that needs nothing else can be drawn by a CUDA graph.
Nothing here waits for the device.
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
from quire.worker.device.uploads import upload
from quire.worker.sampling.logit_masks import LogitMasks
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens

SampleFunction = Callable[[Tensor, SampledRows], Tensor]
KEEP_ORDER: tuple[Stage, ...] = ("temperature", "filter")


@dataclass(frozen=True, slots=True)
class _SamplingNeeds:
    """What the requests of a batch ask of a draw.

    Attributes:
        active: The bits of the steps that some of them need.
        fields: Of each.
        num_logprobs: Of each.
        asking: The rows that want log probabilities.
        has_min_tokens: Whether an answer must have a length.
    """

    active: int
    fields: Sequence[Mapping[str, Any]]
    num_logprobs: Sequence[int | None]
    asking: Sequence[int]
    has_min_tokens: bool

    @classmethod
    def of(cls, infos: Sequence[SlotInfo]) -> _SamplingNeeds:
        """Gather them."""
        num_logprobs = [info.num_logprobs for info in infos]
        return cls(
            active=functools.reduce(operator.or_, (info.active_steps for info in infos), 0),
            fields=[info.fields for info in infos],
            num_logprobs=num_logprobs,
            asking=[row for row, count in enumerate(num_logprobs) if count is not None],
            has_min_tokens=any(info.min_tokens for info in infos),
        )


class SamplingPipeline:
    """Logits steps in order, and the step that draws.

    Args:
        steps: The steps before the draw, each with its stage.
        sampler: The last step.
        tables: Where the slots' columns lie.
        owners: What an error calls each step, the last one included, and its plugin.
        fused: Which of the steps the draw can do itself, all in one go; see
            `sampler_choice.fused_steps`.
        kernels: What the masks may run: "torch", "triton" or "native".
    """

    def __init__(
        self,
        steps: Sequence[tuple[Stage, LogitsProcessor]],
        sampler: Sampler,
        tables: SlotTables,
        owners: Sequence[str],
        *,
        fused: Sequence[int] = (),
        kernels: str = "torch",
    ) -> None:
        self.steps = [step for _, step in steps]
        self.sampler = sampler
        self.tables = tables
        self._owners = owners
        self._masks = LogitMasks(tables, kernels)
        self._sampler_bit = 1 << len(steps)
        self._every = self._sampler_bit - 1
        keeping_order = sum(1 << i for i, (stage, _) in enumerate(steps) if stage in KEEP_ORDER)
        self._matters_to_greedy = self._every & ~keeping_order
        self._fused = sum(1 << index for index in fused)
        self._not_fused = self._every & ~self._fused  # the draw cannot do these
        self._before_fused = (1 << min(fused, default=0)) - 1
        self._last_infos: list[SlotInfo | None] = []
        self._last_needs = _SamplingNeeds.of(())

    @property
    def sampler_name(self) -> str:
        """Name of the step that draws, and of its plugin, as errors have it."""
        return self._owners[-1]

    def active_steps(self, fields: Mapping[str, Any]) -> int:
        """Return the bits of the steps that a request with these fields needs.

        The likeliest token stays the likeliest through temperature and filters, so a greedy
        request needs none of them.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        active = index = 0
        try:
            for index, step in enumerate((*self.steps, self.sampler)):
                active |= 0 if step.is_neutral(fields) else 1 << index
        except Exception as error:
            raise self._blame(index, error) from error
        is_greedy = not active & self._sampler_bit
        return active & self._matters_to_greedy if is_greedy else active

    def is_fused(self, slots: Sequence[int], masks: Sequence[RowBitmask]) -> bool:
        """Whether the draw alone does all that these rows need, so that `sample_fused` will do."""
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
        """Draw one token a row where the draw absorbs every step; logits stay as they are.

        Nothing on the host is looked at, so a CUDA graph may capture it; what comes back are then
        buffers that every repetition writes over.

        Raises:
            RequestFailedError: The step fails; the message names its plugin.
        """
        return self._sample_fused(logits, rows)

    def run(
        self,
        logits: Tensor,  # [N, V] float32; written in place
        slots: Sequence[int],
        slot_index: Tensor,  # [N] int64, the same on the device
        masks: Sequence[RowBitmask],
    ) -> SampledTokens:
        """Draw one token a row. To be called in inference mode.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        needs = self._needs_of(slots)
        active, asked = needs.active, None
        if needs.asking:
            asked = upload(np.array(needs.asking), logits.device)
        raw = None if asked is None else logits.index_select(0, asked)  # as long as they are whole
        if needs.has_min_tokens:
            self._masks.mask_stops(logits, slots, {mask.slot for mask in masks})
        if masks:
            self._masks.mask_grammars(logits, slots, masks)
        positions = upload(self.tables.num_known[np.asarray(slots)], slot_index.device)
        is_greedy = not active & self._sampler_bit
        rows = self._sampled_rows(slot_index, positions, needs.fields, all_greedy=is_greedy)
        if self._can_fuse(active):
            logits = self._apply(logits, rows, active & self._before_fused)
            sampled = self._sample_fused(logits, rows)
        else:
            sampled = self._sample_unfused(logits, rows, active)
        if asked is not None and raw is not None:
            sampled.logprobs = row_logprobs(raw, sampled.token_ids[asked], needs.num_logprobs)
        return sampled

    @torch.inference_mode()
    def warm_up(self, logits: Tensor) -> list[SampledTokens]:  # [N, V] float32; written in place
        """Draw in every way that a batch may need, for the spare slot; returns what each way drew.

        So all is compiled, and what fails for every request fails here.

        Raises:
            RequestFailedError: A step fails; the message names its plugin.
        """
        spare = self.tables.padding_slot
        slots = [spare] * len(logits)
        index = upload(np.array(slots), logits.device)
        fields = {field.name: field.default for field in self.tables.fields}
        self.active_steps(fields)
        positions, each = torch.ones_like(index), [fields] * len(slots)  # behind a prompt of one
        rows = self._sampled_rows(index, positions, each)
        best = logits.amax(-1)  # no logit is looked up by an id: a wrong one fails the device
        token_ids = [self._run_sampler(self.sampler.sample, logits, replace(rows, all_greedy=True))]
        if self._fused:
            token_ids.append(self._run_sampler(self.sampler.sample_fused, logits, rows))
        every_token = RowBitmask(spare, 0, b"\xff" * (4 * -(-logits.shape[1] // 32)))
        self._masks.mask_grammars(logits, slots, [every_token])
        logits = self._apply(logits, rows, self._every)
        token_ids.append(self._run_sampler(self.sampler.sample, logits, rows))
        return [SampledTokens.of(each, best, logits.shape[1]) for each in token_ids]

    def _needs_of(self, slots: Sequence[int]) -> _SamplingNeeds:
        """Return what the rows ask for; the same requests as in the last step are not asked."""
        infos = [self.tables.info[slot] for slot in slots]
        if infos != self._last_infos:
            self._last_needs = _SamplingNeeds.of([self.tables.info_of(slot) for slot in slots])
            self._last_infos = infos
        return self._last_needs

    def _can_fuse(self, active: int) -> bool:
        """Whether the draw absorbs what random rows need, and no other step stands behind that."""
        is_random = bool(active & self._sampler_bit) and bool(self._fused)
        return is_random and not active & self._not_fused & ~self._before_fused

    def _sample_fused(self, logits: Tensor, rows: SampledRows) -> SampledTokens:
        token_ids = self._run_sampler(self.sampler.sample_fused, logits, rows)
        return self._with_logits(logits, token_ids)

    def _sample_unfused(self, logits: Tensor, rows: SampledRows, active: int) -> SampledTokens:
        best = None if rows.all_greedy else logits.amax(-1)  # [N]; not a number if any is not
        logits = self._apply(logits, rows, active)
        token_ids = self._run_sampler(self.sampler.sample, logits, rows)
        if best is None:  # the chosen one is the best: no second look at every logit
            return self._with_logits(logits, token_ids)
        return SampledTokens.of(token_ids, best, logits.shape[1])

    def _with_logits(self, logits: Tensor, token_ids: Tensor) -> SampledTokens:
        try:
            return SampledTokens.from_logits(logits, token_ids)
        except RuntimeError as error:  # an id that is no token's; a CPU finds it at once
            raise self._blame(len(self.steps), error) from error

    def _run_sampler(
        self, sample: SampleFunction, logits: Tensor, rows: SampledRows
    ) -> Tensor:  # [N] int64
        """Return the token ids of a way to draw, and see that they are as many as there are rows.

        Raises:
            RequestFailedError: The draw fails, or returns something else.
        """
        try:
            token_ids = sample(logits, rows)
        except Exception as error:
            raise self._blame(len(self.steps), error) from error
        check_returned(token_ids, logits.shape[:1], torch.int64, logits.device, self._owners[-1])
        return token_ids

    def _apply(self, logits: Tensor, rows: SampledRows, active: int) -> Tensor:
        """Run the active steps; each is compared with its contract before the next one sees it.

        Raises:
            RequestFailedError: A step fails, or returns something else than `[N, V]` float32.
        """
        shape, device = logits.shape, logits.device
        for index, step in enumerate(self.steps):
            if active >> index & 1:
                try:
                    logits = step.apply(logits, rows)
                except Exception as error:
                    raise self._blame(index, error) from error
                check_returned(logits, shape, torch.float32, device, self._owners[index])
        return logits

    def _sampled_rows(
        self,
        slots: Tensor,  # [N] int64
        positions: Tensor,  # [N] int64
        fields: Sequence[Mapping[str, Any]],
        *,
        all_greedy: bool = False,
    ) -> SampledRows:
        return SampledRows(
            slots=slots,
            positions=positions,
            columns=self.tables.columns,
            token_ids=self.tables.token_ids,
            num_prompt_tokens=self.tables.num_prompt_tokens,
            all_greedy=all_greedy,
            host_fields=fields,
        )

    def _blame(self, index: int, error: Exception) -> RequestFailedError:
        """Say whose step it was that failed."""
        return RequestFailedError(f"{self._owners[index]} failed: {type(error).__name__}")
