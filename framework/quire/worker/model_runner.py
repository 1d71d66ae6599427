"""Run steps: the forward pass of a plan, and the draw of its tokens.

A part that raises must hurt only the request that made it raise. So when a pass over the whole
batch fails, each request is computed alone: writing its KV again is harmless, and only those that
fail alone are reported as failed.
"""

import logging
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

import msgspec
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
from quire.worker.prompt_logprobs import PromptLogprobs, compute_prompt_logprobs
from quire.worker.sampling import Drawn, SamplingPipeline
from quire.worker.slots import SlotTables
from quire.worker.step_inputs import StepInputs, build_inputs

NOT_A_NUMBER = ErrorReport(
    RequestFailedError.code,
    "no token can be drawn for this request: its logits are not numbers, or none is allowed",
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rows:
    """The rows of one forward pass that draw a token."""

    slots: list[int]
    hidden_states: Tensor  # [N, hidden_size]
    logits: Tensor  # [N, V] float32


_Pass = tuple[_Rows | None, list[PromptLogprobs]]  # what one forward pass is asked for


@dataclass(slots=True)
class _Pending:
    """A launched step whose tokens are not drawn yet."""

    plan_id: int
    parts: list[_Rows]
    prompts: list[PromptLogprobs]
    errors: dict[int, ErrorReport]


@dataclass(slots=True)
class _Launched:
    """A step whose tokens are drawn, and may not have reached the host."""

    plan_id: int
    drawn: list[tuple[list[int], Drawn]]  # slots, and what they drew
    prompts: list[PromptLogprobs]
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
        computed_by: str,
    ) -> None:
        self.model = model
        self._forward_pass = as_module(model)
        self.backends = backends
        self.tables = tables
        self.pipeline = pipeline
        self.adapters = adapters
        self._computed_by = computed_by  # model and backend, as an error names them
        self._block_sizes = [backend.shape.block_size for backend in backends]
        self._pending: _Pending | None = None
        self._launched: deque[_Launched] = deque()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> None:
        """Take in what the plan changes, and launch its forward pass."""
        errors = self._take_changes(plan) | self._place_adapters(plan)
        requests = [share for share in plan.requests if share.slot not in errors]
        passes = self._forward_isolated(requests, errors)
        for share in requests:
            self.tables.num_computed[share.slot] += share.num_tokens
        parts = [part for part, _ in passes if part is not None]
        prompts = [prompt for _, found in passes for prompt in found]
        self._pending = _Pending(plan.plan_id, parts, prompts, errors)

    @torch.inference_mode()
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the draw of the launched plan; the tokens are known to the next step at once.

        Raises:
            RuntimeError: Another plan, or none, was launched.
        """
        pending, self._pending = self._pending, None
        if pending is None or pending.plan_id != plan_id:
            raise RuntimeError(f"plan {plan_id} is not the one that was launched")
        launched = _Launched(plan_id, [], pending.prompts, pending.errors)
        for part in pending.parts:
            self._sample_isolated(part, masks, launched)
        self._launched.append(launched)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of the oldest launched draw.

        Older ones that nobody collected were interrupted: they are dropped.

        Raises:
            RuntimeError: That is another plan's, or there is none.
        """
        while self._launched and self._launched[0].plan_id < plan_id:
            self._launched.popleft()
        launched = self._launched.popleft() if self._launched else None
        if launched is None or launched.plan_id != plan_id:
            raise RuntimeError(f"plan {plan_id} is not the one to collect")
        results = [SlotResult(slot, [], None, error) for slot, error in launched.errors.items()]
        for slots, drawn in launched.drawn:
            results += _results(slots, drawn)
        return StepResult(plan_id=plan_id, results=_with_prompts(results, launched.prompts))

    def _take_changes(self, plan: StepPlan) -> dict[int, ErrorReport]:
        """Bring the tables up to date; returns the slots that must fail."""
        errors: dict[int, ErrorReport] = {}
        for assignment in plan.assignments:
            info = self.tables.assign(assignment)
            try:
                self.tables.write_fields(assignment)
                info.active_steps = self.pipeline.active_steps(info.fields)
            except Exception as error:  # the edge of sampler plugins, and of what clients send
                logger.warning("slot %d cannot be sampled", assignment.slot, exc_info=True)
                errors[assignment.slot] = _report("reading the sampler fields", error)
        for added in plan.new_blocks:
            self.tables.add_blocks(added)
        for patch in plan.token_patches:
            self.tables.patch_tokens(patch)
        return errors

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
            except Exception as error:  # the edge of LoRA sources
                logger.warning("adapter %r cannot be used", info.adapter.name, exc_info=True)
                errors[slot] = _report("loading the adapter", error)
        return errors

    def _adapter_index(self, ref: AdapterRef, in_use: Set[AdapterRef]) -> int:
        if self.adapters is None:
            raise AdapterError(f"adapter {ref.name!r}: LoRA is off; start with --enable-lora")
        return self.adapters.load(ref, in_use)

    def _forward_isolated(
        self, requests: Sequence[ScheduledRequest], errors: dict[int, ErrorReport]
    ) -> list[_Pass]:
        """Compute all requests at once or, if that fails, each alone; failures go to `errors`."""
        if not requests:
            return []
        try:
            return [self._forward(requests)]
        except Exception as error:  # the edge of model and backend plugins
            logger.warning("the forward pass of %d request(s) failed", len(requests), exc_info=True)
            if len(requests) == 1:
                errors[requests[0].slot] = _report(
                    f"the forward pass of {self._computed_by}", error
                )
                return []
        return [done for share in requests for done in self._forward_isolated([share], errors)]

    def _forward(self, requests: Sequence[ScheduledRequest]) -> _Pass:
        inputs = build_inputs(requests, self.tables, self._block_sizes)
        prepared = zip(self.backends, inputs.layouts, strict=True)
        batch = ForwardBatch(
            attention=[backend.prepare(layout) for backend, layout in prepared],
            adapters=self._adapter_batch(inputs),
        )
        hidden_states = self._forward_pass(
            inputs.input_ids, inputs.positions, batch
        )  # [T, hidden_size]
        prompts = compute_prompt_logprobs(
            requests, hidden_states, self.tables, self.model.compute_logits
        )
        if not inputs.sampled:
            return None, prompts
        rows = hidden_states if inputs.last_rows is None else hidden_states[inputs.last_rows]
        slots = [inputs.slots[index] for index in inputs.sampled]
        return _Rows(slots, rows, self.model.compute_logits(rows)), prompts

    def _adapter_batch(self, inputs: StepInputs) -> AdapterBatch | None:
        if self.adapters is None:
            return None
        indexes = [self.tables.info_of(slot).adapter_index for slot in inputs.slots]
        return self.adapters.batch(indexes, inputs.query_lens)

    def _sample_isolated(
        self, part: _Rows, masks: Sequence[RowBitmask], launched: _Launched
    ) -> None:
        """Draw for all rows at once or, if that fails, for each alone; fills `launched`."""
        try:
            launched.drawn.append((part.slots, self._sample(part, masks)))
            return
        except Exception as error:  # the edge of sampler plugins
            logger.warning("sampling %d row(s) failed", len(part.slots), exc_info=True)
            if len(part.slots) == 1:
                launched.errors[part.slots[0]] = _report("sampling", error)
                return
        for row, slot in enumerate(part.slots):
            hidden = part.hidden_states[row : row + 1]  # the logits were written over
            single = _Rows([slot], hidden, self.model.compute_logits(hidden))
            self._sample_isolated(single, masks, launched)

    def _sample(self, part: _Rows, masks: Sequence[RowBitmask]) -> Drawn:
        slot_index = torch.tensor(part.slots, device=part.logits.device)
        drawn = self.pipeline.run(part.logits, part.slots, slot_index, masks)
        self.tables.append_tokens(part.slots, slot_index, drawn.token_ids)
        return drawn


def _results(slots: Sequence[int], drawn: Drawn) -> list[SlotResult]:
    is_sound = torch.isfinite(drawn.best).tolist()
    rows = zip(slots, drawn.token_ids.tolist(), is_sound, drawn.read_logprobs(), strict=True)
    return [
        SlotResult(slot, [token_id], None if logprobs is None else [logprobs])
        if is_sound
        else SlotResult(slot, [], None, NOT_A_NUMBER)
        for slot, token_id, is_sound, logprobs in rows
    ]


def _with_prompts(results: list[SlotResult], prompts: Sequence[PromptLogprobs]) -> list[SlotResult]:
    """Add the log probabilities of prompts; a chunk that drew nothing has a result for them."""
    if not prompts:
        return results
    by_slot = {result.slot: result for result in results}
    for prompt in prompts:
        result = by_slot.get(prompt.slot, SlotResult(prompt.slot, []))
        if result.error is None:
            by_slot[prompt.slot] = msgspec.structs.replace(result, prompt_logprobs=prompt.read())
    return list(by_slot.values())


def _report(what: str, error: Exception) -> ErrorReport:
    """Name the kind of failure; what a client may not see stays in the log."""
    if isinstance(error, QuireError):
        return ErrorReport(error.code, str(error))
    return ErrorReport(RequestFailedError.code, f"{what} failed: {type(error).__name__}")
