"""The engine loop: schedule, execute, sample, update."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from quire.engine.grammar.grammars import Grammars
from quire.engine.request import Request, Status
from quire.engine.results import failed_output
from quire.engine.scheduling.scheduler import Scheduler, has_work
from quire.errors import (
    CapacityError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
)
from quire.interfaces.executor import Executor
from quire.messages import (
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    ResetPrefixCache,
    RowBitmask,
    StepPlan,
)

GRAMMAR_WAIT_S = 0.1
STORE_POLL_S = 0.001

logger = logging.getLogger(__name__)


class EngineCore:
    """One scheduler and the way to its workers; four verbs: add, abort, step, control.

    Not thread-safe: one thread calls it. Whether the workers are in this process or in others, the
    engine cannot tell.

    Args:
        scheduler: What to run next.
        executor: Who runs it.
        grammars: Who knows the forms that answers must follow.
        async_scheduling: Plan and launch a step before the previous one is complete, so that a
            device never waits for the host. Outputs then come one step later.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        grammars: Grammars,
        *,
        async_scheduling: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.grammars = grammars
        self._max_in_flight = 1 if async_scheduling else 0
        self._in_flight: deque[StepPlan] = deque()  # launched, and their tokens not taken in yet
        self._outbox: list[EngineOutput] = []
        self._preparing: set[str] = set()  # requests whose grammar is being compiled
        self._num_grammars = 0  # requests that have one

    def add(self, message: EngineRequest) -> None:
        """Take in a request; one that can never run is answered in the next step.

        Raises:
            InvalidRequestError: A request with this id is not over yet.
        """
        if message.request_id in self.scheduler.requests:  # before all that would answer it
            raise InvalidRequestError(f"request id {message.request_id!r} is in use")
        request = Request(message, len(self.scheduler.kv.specs))
        if (refusal := self._refusal(request)) is not None:
            self._outbox.append(failed_output(message.request_id, refusal))
            return
        if request.has_grammar:
            request.status = Status.WAITING_FOR_GRAMMAR
        try:
            self.scheduler.add(request)  # first, so that an interrupt leaves something to abort
        except RequestFailedError as error:
            report = ErrorReport(error.code, str(error))
            self._outbox.append(failed_output(message.request_id, report))
            return
        if message.params.structured_outputs is not None:
            self._num_grammars += 1
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
                self._release_grammar(request_id)
        self._outbox = [said for said in self._outbox if said.request_id not in request_ids]

    def has_work(self) -> bool:
        """Whether `step` would have something to do or to say."""
        return bool(self.scheduler.requests or self._outbox) or not self.scheduler.is_quiescent

    def step(self) -> EngineOutputs:
        """Launch a step, and return the outputs of the oldest one that is complete."""
        self._collect_grammars()
        for request, report in self.scheduler.late():
            self._fail(request.request_id, report)
        plan = self.scheduler.schedule()
        outputs, self._outbox = self._outbox, []
        try:
            self._advance(plan, outputs)
        except BaseException:  # Ctrl-C too: whoever goes on must not build on half a step
            self._in_flight.clear()
            self.scheduler.forget_steps()
            self._outbox = outputs + self._outbox  # the next step says it
            raise
        num_tokens = sum([share.num_tokens for share in plan.requests])
        return EngineOutputs(outputs, self.scheduler.stats(num_tokens))

    def control(self, message: Control) -> Any:
        """Do something between two steps; what concerns the workers goes on to them."""
        if isinstance(message, ResetPrefixCache):
            self.scheduler.reset_prefix_cache()
            return None
        return self.executor.control(message)

    def stats(self) -> EngineStats:
        """Return a few numbers about now."""
        return self.scheduler.stats(0)

    def check_health(self) -> None:
        """Return if every worker lives; for an idle engine, as steps find out by themselves.

        Raises:
            EngineDeadError: One does not.
        """
        self.executor.check_health()

    def wake(self) -> None:
        """Nothing to do: a step here never waits for another process to finish one."""

    def kill(self) -> bool:
        """Nothing can be done, hence False: whoever runs here cannot be interrupted."""
        return False

    def shutdown(self) -> None:
        """Stop the workers, the KV store and the grammar process. May be called twice."""
        self.grammars.shutdown()
        if self.scheduler.transfers is not None:
            self.scheduler.transfers.shutdown()
        self.executor.shutdown()

    def _only_polls(self, plan: StepPlan) -> bool:
        """Whether the plan only asks how far a KV store is, and nothing is computed meanwhile."""
        computes = any(launched.requests for launched in (plan, *self._in_flight))
        return not (computes or plan.kv_loads or plan.kv_saves)

    def _advance(self, plan: StepPlan, outputs: list[EngineOutput]) -> None:
        """Launch a plan, if there is anything in it, and take in the steps that are due.

        Args:
            plan: The step.
            outputs: What is to be said; extended in place, so that an interrupt loses none of it.
        """
        max_in_flight, has_news = 0, bool(outputs)
        if has_work(plan):
            if self._only_polls(plan):
                time.sleep(STORE_POLL_S)
            self._launch(plan, outputs)
            max_in_flight = self._max_in_flight
        elif not self._in_flight and not has_news and self.scheduler.is_waiting_for_store:
            time.sleep(STORE_POLL_S)
        while len(self._in_flight) > max_in_flight:
            self._complete_step(outputs)

    def _launch(self, plan: StepPlan, outputs: list[EngineOutput]) -> None:
        """Launch a plan: its forward pass and, when the masks are there, the draw of its tokens.

        Masks are filled while the model computes. They follow from the tokens before, so where the
        step before has not landed, it does while this one computes.
        """
        masks: Sequence[RowBitmask] = ()
        if not self._num_grammars:
            self.executor.execute(plan)
        elif not self._in_flight:
            has_masks = self._request_masks(plan)
            self.executor.execute(plan)
            masks = self._collect_masks() if has_masks else ()
        else:
            self.executor.execute(plan)
            while self._in_flight:
                self._complete_step(outputs)
            masks = self._collect_masks() if self._request_masks(plan) else ()
        self.executor.sample(plan.plan_id, masks)
        self._in_flight.append(plan)

    def _complete_step(self, outputs: list[EngineOutput]) -> None:
        """Wait for the tokens of the oldest step in flight, and take them in."""
        plan = self._in_flight.popleft()
        result = self.executor.collect(plan.plan_id)
        bound = self._bound_requests(plan) if self._num_grammars else {}
        said = self.scheduler.update(plan, result)
        outputs += said
        if bound:
            self._advance_grammars(bound, said)

    def _bound_requests(self, plan: StepPlan) -> dict[str, Request]:
        """Return the requests of a step that have a grammar, by id."""
        requests = (self.scheduler.request_in(share.slot) for share in plan.requests)
        return {r.request_id: r for r in requests if r is not None and r.has_grammar}

    def _request_masks(self, plan: StepPlan) -> bool:
        """Ask for the masks of the rows that draw under a grammar; False if there are none."""
        rows = []
        for share in plan.requests:
            request = self.scheduler.request_in(share.slot)
            if request is None or not (request.has_grammar and share.num_samples):
                continue
            if request.status is Status.RUNNING:
                rows.append((share.slot, request.request_id))
        if rows:
            self.grammars.request_masks(rows)
        return bool(rows)

    def _collect_masks(self) -> list[RowBitmask]:
        masks = self.grammars.collect_masks()
        self._apply_grammar_news()  # what failed while masks were filled gets an error, no token
        return masks

    def _advance_grammars(
        self, bound: Mapping[str, Request], outputs: Sequence[EngineOutput]
    ) -> None:
        for output in outputs:
            request = bound.get(output.request_id)
            if request is None:
                continue
            if output.finish_reason is not None:
                self._release_grammar(output.request_id)
            else:
                self._advance_grammar(request, output)

    def _advance_grammar(self, request: Request, output: EngineOutput) -> None:
        """Tell a grammar what was drawn; one that waits begins behind the end of the thinking."""
        if not request.is_thinking:
            self.grammars.accept(output.request_id, output.token_ids)
        elif request.message.thinking_end_token_id in output.token_ids:
            request.is_thinking = False
            self.grammars.activate(output.request_id)

    def _release_grammar(self, request_id: str) -> None:
        self._num_grammars -= 1
        self._preparing.discard(request_id)
        self.grammars.release(request_id)

    def _collect_grammars(self) -> None:
        """Queue the requests whose grammars are ready; wait for one if there is nothing else."""
        if not self._preparing:
            return
        is_idle = len(self._preparing) == len(self.scheduler.requests)
        if is_idle and not self._outbox:
            self.grammars.wait_for_compile(GRAMMAR_WAIT_S)
        self._apply_grammar_news()

    def _apply_grammar_news(self) -> None:
        for request_id, error in self.grammars.poll():
            is_new = request_id in self._preparing
            self._preparing.discard(request_id)
            if error is not None:
                self._fail(request_id, ErrorReport(error.code, str(error)))
            elif is_new:
                self.scheduler.make_ready(self.scheduler.requests[request_id])

    def _fail(self, request_id: str, report: ErrorReport) -> None:
        """End a request from here; one that was aborted meanwhile is no news."""
        request = self.scheduler.remove(request_id)
        if request is not None:
            if request.has_grammar:
                self._release_grammar(request_id)
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
        if self.scheduler.num_queued >= limit:
            return ErrorReport(
                OverloadedError.code,
                f"{limit} requests are queued beyond those that can run (max_num_queued); try "
                "again later, or ask for fewer answers at once",
            )
        return None
