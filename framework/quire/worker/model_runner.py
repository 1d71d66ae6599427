"""Run steps: the forward pass of a plan, and the draw of its tokens.

A part that raises must hurt only the request that made it raise. So when a pass over the whole
batch fails, each request is computed alone: writing its KV again is harmless, and only those that
fail alone are reported as failed.
"""

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import AdapterError, QuireError, RequestFailedError
from quire.interfaces.attention import AttentionBackend
from quire.interfaces.lora import AdapterBatch
from quire.interfaces.model import ForwardBatch, Model
from quire.messages import (
    AdapterRef,
    ErrorReport,
    RowBitmask,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    StepResult,
)
from quire.worker.adapters import AdapterManager
from quire.worker.loading import as_module
from quire.worker.sampling import Drawn, SamplingPipeline
from quire.worker.slots import SlotTables
from quire.worker.step_inputs import StepInputs, build_inputs

NOT_A_NUMBER = ErrorReport(
    RequestFailedError.code, "the model gave logits that are not numbers for this request"
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rows:
    """The rows that draw a token, of one forward pass."""

    slots: list[int]
    hidden_states: Tensor  # [N, hidden_size]
    logits: Tensor  # [N, V] float32


@dataclass(slots=True)
class _Pending:
    """A launched step whose tokens are not drawn yet."""

    plan_id: int
    parts: list[_Rows]
    errors: dict[int, ErrorReport]


class ModelRunner:
    """One model on one device, with the tables of its requests."""

    def __init__(
        self,
        model: Model,
        backends: Sequence[AttentionBackend],
        tables: SlotTables,
        pipeline: SamplingPipeline,
        adapters: AdapterManager | None,
    ) -> None:
        self.model = model
        self._forward_pass = as_module(model)
        self.backends = backends
        self.tables = tables
        self.pipeline = pipeline
        self.adapters = adapters
        self._block_sizes = [backend.shape.block_size for backend in backends]
        self._pending: _Pending | None = None

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> None:
        """Take in what the plan changes, and launch its forward pass."""
        self._take_changes(plan)
        errors = self._place_adapters(plan)
        requests = [share for share in plan.requests if share.slot not in errors]
        parts = self._forward_isolated(requests, errors)
        for share in requests:
            self.tables.num_computed[share.slot] += share.num_tokens
        self._pending = _Pending(plan.plan_id, parts, errors)

    @torch.inference_mode()
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> StepResult:
        """Draw the tokens of the launched plan.

        Raises:
            RuntimeError: Another plan, or none, was launched.
        """
        pending, self._pending = self._pending, None
        if pending is None or pending.plan_id != plan_id:
            raise RuntimeError(f"plan {plan_id} is not the one that was launched")
        results = [SlotResult(slot, [], None, report) for slot, report in pending.errors.items()]
        for part in pending.parts:
            results += self._sample_isolated(part, masks)
        return StepResult(plan_id=plan_id, results=results)

    def _take_changes(self, plan: StepPlan) -> None:
        for assignment in plan.assignments:
            info = self.tables.assign(assignment)
            info.active_steps = self.pipeline.active_steps(info.fields)
        for added in plan.new_blocks:
            self.tables.add_blocks(added)
        for patch in plan.token_patches:
            self.tables.patch_tokens(patch)

    def _place_adapters(self, plan: StepPlan) -> dict[int, ErrorReport]:
        """See that the adapters of this step are loaded; returns the slots that must fail."""
        wanted = {share.slot: self.tables.info_of(share.slot) for share in plan.requests}
        in_use = {info.adapter for info in wanted.values() if info.adapter is not None}
        errors: dict[int, ErrorReport] = {}
        for slot, info in wanted.items():
            if info.adapter is None:
                continue
            try:
                info.adapter_index = self._adapter_index(info.adapter, in_use)
            except QuireError as error:
                errors[slot] = ErrorReport(error.code, str(error))
        return errors

    def _adapter_index(self, ref: AdapterRef, in_use: Set[AdapterRef]) -> int:
        if self.adapters is None:
            raise AdapterError(f"adapter {ref.name!r}: LoRA is off; start with --enable-lora")
        return self.adapters.load(ref, in_use)

    def _forward_isolated(
        self, requests: Sequence[ScheduledRequest], errors: dict[int, ErrorReport]
    ) -> list[_Rows]:
        """Compute all requests at once or, if that fails, each alone; failures go to `errors`."""
        if not requests:
            return []
        try:
            return self._forward(requests)
        except Exception as error:  # the edge of model and backend plugins
            logger.warning("the forward pass of %d request(s) failed", len(requests), exc_info=True)
            if len(requests) == 1:
                errors[requests[0].slot] = _report("the forward pass", error)
                return []
        return [part for share in requests for part in self._forward_isolated([share], errors)]

    def _forward(self, requests: Sequence[ScheduledRequest]) -> list[_Rows]:
        inputs = build_inputs(requests, self.tables, self._block_sizes)
        prepared = zip(self.backends, inputs.layouts, strict=True)
        batch = ForwardBatch(
            attention=[backend.prepare(layout) for backend, layout in prepared],
            adapters=self._adapter_batch(inputs),
        )
        hidden_states = self._forward_pass(
            inputs.input_ids, inputs.positions, batch
        )  # [T, hidden_size]
        if not inputs.sampled:
            return []
        rows = hidden_states if inputs.last_rows is None else hidden_states[inputs.last_rows]
        slots = [inputs.slots[index] for index in inputs.sampled]
        return [_Rows(slots, rows, self.model.compute_logits(rows))]

    def _adapter_batch(self, inputs: StepInputs) -> AdapterBatch | None:
        if self.adapters is None:
            return None
        indexes = [self.tables.info_of(slot).adapter_index for slot in inputs.slots]
        return self.adapters.batch(indexes, inputs.query_lens)

    def _sample_isolated(self, part: _Rows, masks: Sequence[RowBitmask]) -> list[SlotResult]:
        """Draw for all rows at once or, if that fails, for each alone."""
        try:
            return self._sample(part, masks)
        except Exception as error:  # the edge of sampler plugins
            logger.warning("sampling %d row(s) failed", len(part.slots), exc_info=True)
            if len(part.slots) == 1:
                return [SlotResult(part.slots[0], [], None, _report("sampling", error))]
        results = []
        for row, slot in enumerate(part.slots):
            hidden = part.hidden_states[row : row + 1]  # the logits were written over
            single = _Rows([slot], hidden, self.model.compute_logits(hidden))
            results += self._sample_isolated(single, masks)
        return results

    def _sample(self, part: _Rows, masks: Sequence[RowBitmask]) -> list[SlotResult]:
        slot_index = torch.tensor(part.slots, device=part.logits.device)
        drawn = self.pipeline.run(part.logits, part.slots, slot_index, masks)
        self.tables.append_tokens(part.slots, slot_index, drawn.token_ids)
        return _results(part.slots, drawn)


def _results(slots: Sequence[int], drawn: Drawn) -> list[SlotResult]:
    rows = zip(slots, drawn.token_ids.tolist(), drawn.is_sound, drawn.logprobs, strict=True)
    return [
        SlotResult(slot, [token_id], None if logprobs is None else [logprobs])
        if is_sound
        else SlotResult(slot, [], None, NOT_A_NUMBER)
        for slot, token_id, is_sound, logprobs in rows
    ]


def _report(what: str, error: Exception) -> ErrorReport:
    """Name the kind of failure; what a client may not see stays in the log."""
    if isinstance(error, QuireError):
        return ErrorReport(error.code, str(error))
    return ErrorReport(RequestFailedError.code, f"{what} failed: {type(error).__name__}")
