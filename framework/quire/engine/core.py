"""The engine loop: schedule, execute, sample, update."""

import logging
from collections.abc import Sequence, Set
from typing import Any, Protocol

from quire.engine.request import Request, Status
from quire.engine.scheduler import Scheduler, failed_output
from quire.errors import CapacityError, GrammarError, OverloadedError, RequestError
from quire.interfaces.executor import Executor
from quire.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    ErrorReport,
    RowBitmask,
    StepPlan,
)
from quire.sampling_params import StructuredOutputsParams

GRAMMAR_WAIT_S = 0.1

logger = logging.getLogger(__name__)


class Grammars(Protocol):
    """What the engine asks of the process that holds the grammars."""

    def submit(
        self, request_id: str, params: StructuredOutputsParams, *, is_active: bool = True
    ) -> None:
        """Begin to compile a request's grammar; it begins at once, or when it is activated."""

    def activate(self, request_id: str) -> None:
        """Let the grammar begin with the next token."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Return the requests whose grammar is ready, and those whose grammar failed."""

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Block until `poll` may have something to say, or the time is up."""

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tell the grammar which tokens were drawn."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Begin to fill the masks of a step, for pairs of slot and request."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return the masks that were asked for."""

    def release(self, request_id: str) -> None:
        """Forget a request."""

    def shutdown(self) -> None:
        """End the process. May be called twice."""


class NoGrammars:
    """Structured output is off: every grammar is refused, with the way out."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    def submit(
        self, request_id: str, params: StructuredOutputsParams, *, is_active: bool = True
    ) -> None:
        """Note the request, to be refused."""
        del params, is_active
        self._refused.append(request_id)

    def activate(self, request_id: str) -> None:
        """Nothing was ever admitted."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Refuse what was submitted."""
        refused, self._refused = self._refused, []
        error = GrammarError("structured output is off; start with --structured-output NAME")
        return [(request_id, error) for request_id in refused]

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Return at once: nothing compiles."""
        del timeout_s
        return bool(self._refused)

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Nothing was ever admitted."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Nothing was ever admitted."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return no masks."""
        return []

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._refused = [other for other in self._refused if other != request_id]

    def shutdown(self) -> None:
        """Nothing to stop."""


class EngineCore:
    """One scheduler and the way to its workers; four verbs: add, abort, step, control.

    Not thread-safe: one thread calls it. Whether the workers are in this process or in others, the
    engine cannot tell.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, grammars: Grammars) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.grammars = grammars
        self._outbox: list[EngineOutput] = []
        self._preparing: set[str] = set()  # requests whose grammar is being compiled

    def add(self, message: EngineRequest) -> None:
        """Take in a request; one that can never run is answered in the next step."""
        request = Request(message, len(self.scheduler.kv.specs))
        if (refusal := self._refusal(request)) is not None:
            self._outbox.append(failed_output(message.request_id, refusal))
            return
        if message.params.structured_outputs is None:
            self.scheduler.add(request)
            return
        request.status = Status.PREPARING
        self.scheduler.add(request)  # first, so that an interrupt leaves something to abort
        self._preparing.add(message.request_id)
        self.grammars.submit(
            message.request_id,
            message.params.structured_outputs,
            is_active=message.thinking_end_token_id is None,
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests at any moment; unknown ids are ignored, as they may just have finished."""
        for request_id in request_ids:
            request = self.scheduler.remove(request_id)
            if request is not None and request.has_grammar:
                self._preparing.discard(request_id)
                self.grammars.release(request_id)

    def has_work(self) -> bool:
        """Whether `step` would have something to do or to say."""
        return bool(self.scheduler.requests or self._outbox)

    def step(self) -> EngineOutputs:
        """Compute one step for every request that fits."""
        self._collect_grammars()
        plan = self.scheduler.schedule()
        outputs, self._outbox = self._outbox, []
        if plan.requests:
            outputs += self._run(plan)
        num_tokens = sum(share.num_tokens for share in plan.requests)
        return EngineOutputs(outputs, self.scheduler.stats(num_tokens))

    def control(self, name: str, argument: Any = None) -> Any:
        """Do something besides steps, on every worker."""
        return self.executor.control(name, argument)

    def shutdown(self) -> None:
        """Stop the workers and the grammar process. May be called twice."""
        self.grammars.shutdown()
        self.executor.shutdown()

    def _run(self, plan: StepPlan) -> list[EngineOutput]:
        """Run a plan; the masks are filled while the model computes."""
        bound = self._requests_with_grammar(plan)
        sampled = [share.slot for share in plan.requests if share.num_samples]
        rows = [(slot, bound[slot].request_id) for slot in sampled if slot in bound]
        if rows:
            self.grammars.request_masks(rows)
        self.executor.execute(plan)
        masks = self.grammars.collect_masks() if rows else []
        if rows:
            self._settle_grammars()  # what failed while masks were filled gets an error, no token
        self.executor.sample(plan.plan_id, masks)
        result = self.executor.collect(plan.plan_id)
        outputs = self.scheduler.update(plan, result)
        if bound:
            self._advance_grammars({r.request_id for r in bound.values()}, outputs)
        return outputs

    def _requests_with_grammar(self, plan: StepPlan) -> dict[int, Request]:
        """Return them by slot, those too that only compute a chunk: they may fail in it."""
        slots = [share.slot for share in plan.requests]
        requests = {slot: self.scheduler.request_in(slot) for slot in slots}
        return {slot: request for slot, request in requests.items() if request.has_grammar}

    def _advance_grammars(self, bound: Set[str], outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            if output.request_id not in bound:
                continue
            if output.finish_reason is not None:
                self.grammars.release(output.request_id)
            else:
                self._advance_grammar(output)

    def _advance_grammar(self, output: EngineOutput) -> None:
        """Tell a grammar what was drawn; one that waits begins behind the end of the thinking."""
        request = self.scheduler.requests[output.request_id]
        if not request.is_thinking:
            self.grammars.accept(output.request_id, output.token_ids)
        elif request.message.thinking_end_token_id in output.token_ids:
            request.is_thinking = False
            self.grammars.activate(output.request_id)

    def _collect_grammars(self) -> None:
        """Queue the requests whose grammars are ready; wait for one if there is nothing else."""
        if not self._preparing:
            return
        is_idle = len(self._preparing) == len(self.scheduler.requests)
        if is_idle and not self._outbox:
            self.grammars.wait_for_compile(GRAMMAR_WAIT_S)
        self._settle_grammars()

    def _settle_grammars(self) -> None:
        for request_id, error in self.grammars.poll():
            is_new = request_id in self._preparing
            self._preparing.discard(request_id)
            if error is not None:
                self._fail(request_id, ErrorReport(error.code, str(error)))
            elif is_new:
                self.scheduler.make_ready(self.scheduler.requests[request_id])

    def _fail(self, request_id: str, report: ErrorReport) -> None:
        """End a request whose grammar failed; one that was aborted meanwhile is no news."""
        if self.scheduler.remove(request_id) is not None:
            self.grammars.release(request_id)
            self._outbox.append(failed_output(request_id, report))

    def _refusal(self, request: Request) -> ErrorReport | None:
        kv = self.scheduler.kv
        if not kv.can_ever_fit(request):
            return ErrorReport(
                CapacityError.code,
                f"prompt and answer may take {request.max_total_tokens} tokens, which need "
                f"{kv.blocks_to_finish(request)} KV blocks; the engine has {kv.pool.num_usable}. "
                "Ask for fewer tokens, or give the engine more memory",
            )
        limit = self.scheduler.settings.max_num_queued
        if len(self.scheduler.requests) - len(self.scheduler.running) >= limit:
            return ErrorReport(OverloadedError.code, f"{limit} requests are waiting already")
        return None
