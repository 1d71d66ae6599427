"""Model runner: runs the forward pass of a step plan and samples its tokens.

An error raised by a part must fail only the request that caused it. When a pass over the whole
batch fails, a single worker therefore computes each request alone: writing its KV again is
harmless, and only the requests that fail alone are reported as failed. One worker of several ends
the step instead, see `failures`.

With several pipeline stages, each runs the same plans. Tensors go from stage to stage, and the last
stage alone samples.

A decode step, one token for each of some requests, replays a graph, which gathers the step's inputs
itself: a CUDA graph on a GPU, or a traced CPU graph.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor

from quire.errors import AdapterError, SettingsError
from quire.interfaces.attention import KVBackend
from quire.interfaces.executor import StepRunner
from quire.interfaces.lora import AdapterBatch
from quire.interfaces.model import ForwardBatch, Model, ModelDescription, StageTensors
from quire.layers.returned import check_returned
from quire.messages import (
    AdapterRef,
    ErrorReport,
    RowBitmask,
    ScheduledRequest,
    StepPlan,
    StepResult,
    WorkerControl,
)
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs, build_inputs
from quire.worker.batch.step_results import LaunchedStep, failure
from quire.worker.device.block_copies import BlockCopier
from quire.worker.device.copies import HostCopier, upload
from quire.worker.device.device_faults import end_if_device_failed
from quire.worker.failures import BatchWork, FailurePolicy, IsolateAlone
from quire.worker.graphs.step_graphs import CapturedStep, StepGraphs
from quire.worker.kv_store_host import KVStoreHost
from quire.worker.lora.adapter_manager import AdapterManager
from quire.worker.sampling.companion_rows import rows_alone
from quire.worker.sampling.prompt_logprobs import PromptLogprobs, compute_prompt_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire.worker.stage import WHOLE_MODEL, Stage
from quire.worker.stage_forward import Computed, StageForward

if TYPE_CHECKING:  # it loads Triton
    from quire.worker.batch.device_inputs import DeviceInputs

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Rows:
    """Rows of one forward pass for which a token is sampled."""

    slots: list[int]
    hidden_states: Tensor  # [N, hidden_size]
    logits: Tensor  # [N, M], of this device's shard of the vocabulary
    captured: CapturedStep | None = None  # that computed these rows


_Pass = tuple[_Rows | None, list[PromptLogprobs]]  # the outputs of one forward pass


@dataclass(slots=True)
class _Pending:
    """A launched step whose tokens are not sampled yet.

    Attributes:
        plan_id: Id of the step plan.
        parts: Rows to sample, one entry for each forward pass.
        prompts: Prompt log probabilities of the step.
        errors: Errors of slots that failed.
        sampled_elsewhere: Slots for which the last pipeline stage samples a token, not this one.
    """

    plan_id: int
    parts: list[_Rows]
    prompts: list[PromptLogprobs]
    errors: dict[int, ErrorReport]
    sampled_elsewhere: list[int]


class ModelRunner(StepRunner):
    """Runs one model on one device, with the slot tables of its requests.

    Args:
        model: Model to run.
        backends: Attention backends, by the backend index of the layers.
        tables: Slot tables of the running requests.
        pipeline: Sampling pipeline.
        adapters: Manager of the LoRA adapters; None if LoRA is off.
        description: Description of the model, against which its outputs are checked.
        computed_by: Names of the model and its backends, for error messages.
        device_inputs: Buffers that gather inputs on the device; None if the host builds them.
        stage: Pipeline stage of the model.
        failures: Treatment of failures.
        has_digest: Whether other workers sample the same tokens, so that results have a digest.

    Attributes:
        stage_forward: Forward pass of the stage, with what it receives and sends.
        graphs: Decode steps that are replayed; None: there are none.
        kv_store: Worker side of the KV store; None if there is none.
        block_copier: Copies blocks of the KV cache.
    """

    def __init__(
        self,
        model: Model,
        backends: Sequence[KVBackend],
        tables: SlotTables,
        pipeline: SamplingPipeline,
        adapters: AdapterManager | None,
        description: ModelDescription,
        computed_by: str,
        device_inputs: DeviceInputs | None = None,
        *,
        stage: Stage = WHOLE_MODEL,
        failures: FailurePolicy | None = None,
        has_digest: bool = False,
    ) -> None:
        self.model = model
        self.stage = stage
        self.stage_forward = StageForward(model, stage, description, computed_by)
        self.backends = backends
        self.tables = tables
        self.pipeline = pipeline
        self.adapters = adapters
        self.graphs: StepGraphs | None = None
        self.kv_store: KVStoreHost | None = None
        self.block_copier = BlockCopier((), backends)
        self.description = description
        self.computed_by = computed_by
        self.device_inputs = device_inputs
        self._block_sizes = [backend.shape.block_size for backend in backends]
        self._copier = HostCopier(tables.device)
        self._has_digest = has_digest
        self._failures = IsolateAlone() if failures is None else failures
        self._pending: _Pending | None = None
        self._launched: deque[LaunchedStep] = deque()

    def execute(self, plan: StepPlan) -> None:
        """Start the transfers of a plan, which run beside it, and launch its forward pass.

        Raises:
            StepFailedError: It failed, and this is one worker of several.
            CollectiveError: Another worker did not take part.
        """
        if self.kv_store is not None:
            self.kv_store.begin_step(plan)
        self._launch(plan)

    @torch.inference_mode()
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch sampling for the launched plan; the next step can use the tokens at once.

        Raises:
            RuntimeError: Another plan, or none, was launched.
            StepFailedError: It failed, and this is one worker of several.
            CollectiveError: Another worker did not take part.
        """
        pending, self._pending = self._pending, None
        if pending is None or pending.plan_id != plan_id:
            raise RuntimeError(f"plan {plan_id} is not the one that was launched")
        launched = LaunchedStep(
            plan_id,
            [],
            pending.prompts,
            pending.errors,
            self.pipeline.sampler_name,
            self._has_digest,
        )
        for part in pending.parts:
            launched.sampled += self._sample_rows(part, masks, launched.errors)
        if pending.sampled_elsewhere:
            self.tables.note_sampled(np.array(pending.sampled_elsewhere))
        self._launched.append(launched)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of a step whose sampling was launched.

        Older steps that were never collected were interrupted; they are dropped.

        Raises:
            RuntimeError: The oldest remaining step is of another plan, or there is none.
        """
        while self._launched and self._launched[0].plan_id < plan_id:
            self._launched.popleft()
        launched = self._launched.popleft() if self._launched else None
        if launched is None or launched.plan_id != plan_id:
            raise RuntimeError(f"plan {plan_id} is not the one to collect")
        result = launched.read()
        if self.kv_store is None:
            return result
        return msgspec.structs.replace(result, transfers=self.kv_store.report(plan_id))

    def is_ready(self, plan_id: int) -> bool:
        """Return whether the tokens of a step have reached the host."""
        return all(step.is_ready for step in self._launched if step.plan_id == plan_id)

    def control(self, command: WorkerControl) -> None:
        """Load an adapter.

        Raises:
            SettingsError: LoRA is off.
            AdapterError: The adapter cannot be used.
        """
        if self.adapters is None:
            raise SettingsError("LoRA is off; start with --enable-lora")
        self.adapters.load(command.adapter, frozenset())

    def shutdown(self) -> None:
        """Stop the KV store, and drop all graphs: captured steps reference the runner."""
        if self.kv_store is not None:
            self.kv_store.shutdown()
        if self.graphs is not None:
            self.graphs.clear()
        self.graphs = None

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> None:
        """Apply the changes of a plan to the tables, and launch its forward pass."""
        errors = self._apply_changes(plan)
        errors |= self._load_adapters(plan)
        requests: Sequence[ScheduledRequest] = plan.requests
        if errors:
            requests = [request for request in requests if request.slot not in errors]
        passes = self._compute(requests, errors)
        self.tables.note_computed(requests)
        parts = [part for part, _ in passes if part is not None]
        prompts = [prompt for _, found in passes for prompt in found]
        sampled = [] if self.stage.is_last else _slots_of(r for r in requests if r.num_samples)
        self._pending = _Pending(plan.plan_id, parts, prompts, errors, sampled)

    def _apply_changes(self, plan: StepPlan) -> dict[int, ErrorReport]:
        """Update the slot tables, and return the errors of slots that must fail."""
        errors: dict[int, ErrorReport] = {}
        for assignment in plan.assignments:
            info = self.tables.assign(assignment)
            try:
                self.tables.write_fields(assignment)
                info.active_steps = self.pipeline.active_steps(
                    info.fields, has_logprobs=info.num_logprobs is not None
                )
                initial = self.pipeline.initial_state(info.active_steps, info.fields)
                self.tables.states.write(assignment.slot, assignment.state or initial)
            except Exception as error:  # the edge of sampler plugins, and of what clients send
                logger.warning(
                    "cannot read the sampler fields of the request in slot %d; the request fails",
                    assignment.slot,
                    exc_info=True,
                )
                errors[assignment.slot] = failure("reading the sampler fields", error)
        copies = [copy for assignment in plan.assignments for copy in assignment.block_copies]
        if copies:
            self.block_copier.copy(copies)
        for added in plan.new_blocks:
            self.tables.add_blocks(added)
        for patch in plan.token_patches:
            self.tables.patch_tokens(patch)
        self.tables.push()
        self._failures.exclude(errors)
        return errors

    def _load_adapters(self, plan: StepPlan) -> dict[int, ErrorReport]:
        """Load the adapters of this step, and return the errors of slots that must fail."""
        tables, errors = self.tables, dict[int, ErrorReport]()
        if not tables.with_adapter:
            return errors
        slots = [request.slot for request in plan.requests if request.slot in tables.with_adapter]
        adapters = {slot: ref for slot in slots if (ref := tables.info_of(slot).adapter)}
        in_use = set(adapters.values())
        for slot, adapter in adapters.items():
            try:
                tables.adapter_index[slot] = self._adapter_index(adapter, in_use)
            except Exception as error:  # the edge of LoRA sources
                end_if_device_failed(error)
                logger.warning(
                    "adapter %r cannot be used; its requests fail", adapter.name, exc_info=True
                )
                errors[slot] = failure("loading the adapter", error)
        self._failures.exclude(errors)
        return errors

    def _adapter_index(self, ref: AdapterRef, in_use: Set[AdapterRef]) -> int:
        if self.adapters is None:
            raise AdapterError(f"adapter {ref.name!r}: LoRA is off; start with --enable-lora")
        return self.adapters.load(ref, in_use)

    def _compute(
        self, requests: Sequence[ScheduledRequest], errors: dict[int, ErrorReport]
    ) -> list[_Pass]:
        """Compute the requests of a step, by a captured step if one fits; fills `errors`."""
        if not requests:
            return []
        replayed = self._replay_captured(requests)
        if replayed is not None:
            return [replayed]
        what = f"the forward pass of {self.computed_by}"
        work = BatchWork(what, self._forward, _slots_of, self._each_alone)
        return self._failures.run(work, requests, errors)

    def _forward(self, requests: Sequence[ScheduledRequest]) -> _Pass:
        inputs = self.inputs_of(requests)
        hidden_states = self.hidden_states_of(inputs, self._adapter_batch(inputs))
        if not self.stage.is_last:
            return None, []
        prompts: list[PromptLogprobs] = []
        if self.tables.with_prompt_logprobs:
            prompts = compute_prompt_logprobs(
                requests,
                hidden_states,
                self.tables,
                self.whole_logits_of,
                as_logits=self.pipeline.reports_logits,
            )
        for prompt in prompts:
            prompt.start_copy(self._copier)
        if not inputs.sampled:
            return None, prompts
        slots, rows = inputs.slots, hidden_states
        if inputs.last_rows is not None:
            slots = [slots[index] for index in inputs.sampled]
            rows = hidden_states[inputs.last_rows]
        return _Rows(slots, rows, self.logits_of(rows)), prompts

    def inputs_of(self, requests: Sequence[ScheduledRequest]) -> StepInputs:
        """Build the inputs of a step, on the host or on the device."""
        if self.device_inputs is None:
            return build_inputs(requests, self.tables, self._block_sizes)
        return self.device_inputs.build(requests)

    def logits_of(self, rows: Tensor) -> Tensor:  # [N, hidden_size] -> [N, M]
        """Return the logits of some rows in this device's shard of the vocabulary.

        The caller may overwrite them.

        Raises:
            RequestFailedError: The model returned something other than such logits.
        """
        logits = self.model.compute_logits(rows)
        shape = (len(rows), len(self.pipeline.vocabulary.token_ids))
        check_returned(logits, shape, None, rows.device, f"compute_logits of {self.computed_by}")
        return logits

    def whole_logits_of(self, rows: Tensor) -> Tensor:  # [N, hidden_size] -> [N, V] float32
        """Return the logits of some rows for the whole vocabulary, on every device."""
        return self.pipeline.vocabulary.gather(self.logits_of(rows)).float()

    def hidden_states_of(
        self, inputs: StepInputs, adapters: AdapterBatch | None
    ) -> Tensor:  # [T, hidden_size]
        """Run the model through Python, with what its stage receives and sends."""
        received = self.stage_forward.receive(len(inputs.input_ids))
        return self.stage_forward.send(self.compute(inputs, adapters, received))

    def compute(
        self, inputs: StepInputs, adapters: AdapterBatch | None, received: StageTensors | None
    ) -> Computed:
        """Prepare the backends for the step, and run the model through Python.

        Raises:
            RequestFailedError: The model returned something other than the step's hidden states.
        """
        prepared = zip(self.backends, inputs.layouts, strict=True)
        batch = ForwardBatch(
            attention=[backend.prepare(layout) for backend, layout in prepared], adapters=adapters
        )
        forward = self.stage_forward
        return forward.compute(inputs.input_ids, inputs.positions, batch, received)

    def _adapter_batch(self, inputs: StepInputs) -> AdapterBatch | None:
        if self.adapters is None:
            return None
        indexes = self.tables.adapter_index[inputs.slots]
        if self.device_inputs is None:
            return self.adapters.batch(indexes.tolist(), inputs.query_lens)
        if indexes.max() < 0:
            return None
        return self.device_inputs.adapter_batch(len(inputs.input_ids))

    def _replay_captured(self, requests: Sequence[ScheduledRequest]) -> _Pass | None:
        """Compute all requests by a captured step; None if no captured step fits, or it fails."""
        found = None if self.graphs is None else self.graphs.step_for(requests)
        if self.graphs is None or found is None:
            return None
        slots, step = found
        replay = partial(self._replay, self.graphs, step, len(slots))
        hidden_states = self._failures.attempt("a captured step", slots, replay)
        if hidden_states is None:
            return None
        if step.logits is None:
            return None, []
        return _Rows(slots, hidden_states, step.logits[: len(slots)], step), []

    def _replay(
        self, graphs: StepGraphs, step: CapturedStep, num_requests: int
    ) -> Tensor:  # [num_requests, hidden_size]
        """Replay a captured step, with what its stage receives and sends."""
        received = self.stage_forward.receive(num_requests)
        return self.stage_forward.send(graphs.replay(step, num_requests, received))

    def _sample_rows(
        self, part: _Rows, masks: Sequence[RowBitmask], errors: dict[int, ErrorReport]
    ) -> list[tuple[list[int], SampledTokens]]:
        """Sample a token for each row; fills `errors`."""

        def sample(rows: _Rows) -> tuple[list[int], SampledTokens]:
            return rows.slots, self._sample(rows, masks)

        work = BatchWork("sampling", sample, lambda rows: rows.slots, self._rows_alone)
        return self._failures.run(work, part, errors)

    def _each_alone(self, requests: Sequence[ScheduledRequest]) -> list[Sequence[ScheduledRequest]]:
        """Return each request alone, or with its companion."""
        slots = _slots_of(requests)
        alone = rows_alone(slots, [self.tables.info_of(slot) for slot in slots])
        return [[requests[row] for row in rows] for rows in alone]

    def _rows_alone(self, part: _Rows) -> Iterator[_Rows]:
        """Return each row alone, or with its companion's; sampling has overwritten the logits."""
        infos = [self.tables.info_of(slot) for slot in part.slots]
        for rows in rows_alone(part.slots, infos):
            hidden = part.hidden_states[rows]
            yield _Rows([part.slots[row] for row in rows], hidden, self.logits_of(hidden))

    def _sample(self, part: _Rows, masks: Sequence[RowBitmask]) -> SampledTokens:
        captured, slots = part.captured, np.array(part.slots)
        if captured and captured.sample and self.pipeline.is_fused(part.slots, masks):
            sampled = captured.sample().first(len(slots))
            sampled.start_copy(self._copier)
            self.tables.note_sampled(slots)
        else:
            slot_index = upload(slots, part.logits.device)
            sampled = self.pipeline.run(part.logits, part.slots, slot_index, masks)
            sampled.start_copy(self._copier)
            self.tables.append_tokens(slots, sampled.token_ids)
            if sampled.states is not None:
                sampled.states.store(self.tables.states)
        return sampled  # on an error above, num_known is unchanged: sampling again is safe


def _slots_of(requests: Iterable[ScheduledRequest]) -> list[int]:
    return [request.slot for request in requests]
