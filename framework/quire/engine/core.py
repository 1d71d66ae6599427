"""The engine loop: schedule, execute, sample, update."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from quire.engine.grammar.grammar_waits import GrammarWaits
from quire.engine.grammar.grammars import Grammars
from quire.engine.kv_cache.block_map import BlockMapReader
from quire.engine.request import Request, Status
from quire.engine.results import failed_output, outcome_of, report_of
from quire.engine.row_masks import within, without
from quire.engine.scheduling.scheduler import Scheduler
from quire.engine.stopped_runner import StoppedRunner
from quire.engine.thinking_budgets import ThinkingBudgets
from quire.errors import (
    CapacityError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
    StepFailedError,
)
from quire.interfaces.executor import StepRunner, Worker
from quire.messages import (
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    ReadBlockMap,
    ReadKVSnapshot,
    ResetPrefixCache,
    RowBitmask,
    StepPlan,
    StepStats,
)
from quire.process.interrupts import Interrupts

GRAMMAR_WAIT_S = 0.1
STORE_POLL_S = 0.001

logger = logging.getLogger(__name__)


class EngineCore:
    """One scheduler and one runner of steps, driven by four methods: add, abort, step, control.

    Not thread-safe: one thread calls it. The runner hides whether the workers run in this process
    or in others.

    Args:
        scheduler: Scheduler that plans the steps.
        worker: The worker, or all workers as one.
        runner: Runner of the workers' steps.
        grammars: Grammars of the requests with structured output.
        async_scheduling: Plan and launch a step before the previous one is complete, so that a
            device never waits for the host. Outputs then come one step later. A pipeline always
            has as many steps in flight as stages, and this adds none: see `_max_steps_in_flight`.
        pipeline_parallel_size: Number of pipeline stages.
        vocab_size: V.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        runner: StepRunner,
        grammars: Grammars,
        *,
        async_scheduling: bool = False,
        pipeline_parallel_size: int = 1,
        vocab_size: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.runner = runner
        self.grammars = grammars
        self._max_in_flight = _max_steps_in_flight(
            pipeline_parallel_size, async_scheduling=async_scheduling
        )
        self._in_flight: deque[StepPlan] = deque()  # launched, results not collected yet
        self._outbox: list[EngineOutput] = []
        self._journal = scheduler.kv.journal  # changes of the prefix cache, if they are reported
        self._block_map = BlockMapReader(scheduler.kv.pool, lambda: scheduler.running)
        self._preparing: set[str] = set()  # requests whose grammar is being compiled
        self._grammar_waits = GrammarWaits()
        self._num_grammars = 0  # requests with a grammar
        self._budgets = ThinkingBudgets(vocab_size)
        self._vocab_size = vocab_size
        self._interrupts = Interrupts()

    def add(self, message: EngineRequest) -> None:
        """Add a request. If it can never run, the next step returns an error output for it.

        Raises:
            InvalidRequestError: A request with this id has not finished yet.
        """
        if message.request_id in self.scheduler.requests:  # first: no output may carry this id
            raise InvalidRequestError(f"request id {message.request_id!r} is in use")
        max_timeout_s = self.scheduler.settings.request_timeout_s
        request = Request(message, len(self.scheduler.kv.specs), max_timeout_s)
        if (refusal := self._refusal(request)) is not None:
            self._outbox.append(failed_output(message.request_id, refusal))
            return
        if request.has_grammar:
            request.status = Status.WAITING_FOR_GRAMMAR
        try:
            self.scheduler.add(request)  # first, so that an interrupted add can be aborted
        except RequestFailedError as error:
            self._outbox.append(failed_output(message.request_id, report_of(error)))
            return
        if (budget := message.thinking_budget) is not None:
            self._budgets.add(message.request_id, budget, message.call_openers)
        if message.params.structured_outputs is not None:
            self._num_grammars += 1
            self._preparing.add(message.request_id)
            self._grammar_waits.begin(message.request_id)
            self.grammars.submit(
                message.request_id,
                message.params.structured_outputs,
                is_active=message.thinking_end is None,
                client=message.client,
            )

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests at any time; unknown ids are ignored, as they may have just finished."""
        with self._interrupts:
            for request_id in request_ids:
                self._remove(request_id)
            self._outbox = [each for each in self._outbox if each.request_id not in request_ids]

    def has_work(self) -> bool:
        """Whether `step` has something to compute, to poll or to return."""
        if self.scheduler.requests or self._outbox or self._journal:
            return True
        return not self.scheduler.is_quiescent

    def step(self) -> EngineOutputs:
        """Launch a step, and return the outputs of the oldest one that is complete.

        Ctrl-C interrupts the workers, and the wait for them. What the engine does itself is short,
        and is completed before.
        """
        began_s = time.monotonic()
        self._collect_grammars()
        outputs: list[EngineOutput] = []
        num_tokens = num_requests = 0
        try:
            with self._interrupts:
                plan = self._plan(outputs)
                num_tokens = sum([scheduled.num_tokens for scheduled in plan.requests])
                num_requests = len(plan.requests)
                self._advance(plan, outputs)
        except StepFailedError as error:
            self._isolate(error)
        except BaseException:  # Ctrl-C too: later steps must not build on an interrupted one
            with self._interrupts:
                self._in_flight.clear()
                self.scheduler.discard_steps()
                self._outbox = outputs + self._outbox  # returned by the next step
            raise
        kv_events = [] if self._journal is None else self._journal.take()
        steps = []
        if num_requests:
            steps.append(StepStats(num_requests, num_tokens, time.monotonic() - began_s))
        return EngineOutputs(outputs, self._stats(num_tokens), kv_events, steps)

    def control(self, message: Control) -> Any:
        """Execute a control message between two steps; those for the workers are forwarded."""
        if isinstance(message, ResetPrefixCache):
            self.scheduler.reset_prefix_cache()
            return None
        if isinstance(message, ReadKVSnapshot):
            return [] if self._journal is None else [self._journal.snapshot()]
        if isinstance(message, ReadBlockMap):
            return [self._block_map.read(message.max_cells)]
        try:
            return self.runner.control(message)
        except StepFailedError as error:  # a step in flight failed before the command was run
            self._isolate(error)
            return self.runner.control(message)

    def begin_control(self, message: Control) -> Future[Any]:
        """Execute a command; return its result or error, which are there already."""
        return outcome_of(lambda: self.control(message))

    def stats(self) -> EngineStats:
        """Return the current statistics."""
        return self._stats(0)

    def check_health(self) -> None:
        """Return if every worker is alive. Meant for an idle engine: a step notices by itself.

        Raises:
            EngineDeadError: A worker has died.
        """
        self.worker.check_health()

    def wake(self) -> None:
        """Do nothing: a step never blocks on another process's step here."""

    def kill(self) -> bool:
        """Return False: an engine in the calling process cannot be killed."""
        return False

    def shutdown(self) -> None:
        """Stop the workers, the KV store and the grammar process. May be called twice."""
        self.grammars.shutdown()
        if self.scheduler.transfers is not None:
            self.scheduler.transfers.store.shutdown()
        self.runner = StoppedRunner()
        self.worker.shutdown()

    def _stats(self, num_scheduled_tokens: int) -> EngineStats:
        stats, grammars = self.scheduler.stats(num_scheduled_tokens), self._grammar_waits
        if not (grammars.num_done or self._preparing):
            return stats
        return msgspec.structs.replace(
            stats,
            num_grammars_waiting=len(self._preparing),
            num_grammars_compiled=grammars.num_done,
            grammar_wait_s=grammars.total_s,
        )

    def _only_polls(self, plan: StepPlan) -> bool:
        """Whether the plan only polls the KV store, and no step in flight computes anything."""
        if plan.requests or plan.kv_loads or plan.kv_saves:
            return False
        return not any(launched.requests for launched in self._in_flight)

    def _plan(self, outputs: list[EngineOutput]) -> StepPlan:
        """Plan the next step, and move the outputs that are there already to `outputs`."""
        for request, report in self.scheduler.pop_expired():
            self._fail(request.request_id, report)
        plan = self.scheduler.schedule()
        outputs += self._outbox
        self._outbox = []
        return plan

    def _advance(self, plan: StepPlan, outputs: list[EngineOutput]) -> None:
        """Launch a plan and complete the steps that are due; without work, complete the oldest.

        Args:
            plan: Plan of the next step.
            outputs: Outputs to return; extended in place, so that an interrupt loses none.
        """
        if self.scheduler.has_work(plan):
            if self._only_polls(plan):
                time.sleep(STORE_POLL_S)
            self._launch(plan, outputs)
            while len(self._in_flight) > self._max_in_flight:
                self._complete_step(outputs)
        elif self._in_flight:
            self._complete_step(outputs)
        elif not outputs and self.scheduler.is_waiting_for_store:
            time.sleep(STORE_POLL_S)

    def _launch(self, plan: StepPlan, outputs: list[EngineOutput]) -> None:
        """Launch a plan: its forward pass and, once the grammar masks are filled, its sampling.

        Masks are filled while the model computes. The mask of a row depends on the token before it;
        if that token is in flight, the steps in flight are completed while this one computes. In a
        pipeline it never is, so a mask waits for no step.
        """
        if not (self._num_grammars or self._budgets):
            self._start(plan)
        elif self._is_undecided(plan):
            self._execute(plan)
            while self._in_flight:
                self._complete_step(outputs)
            has_grammars = self._request_masks(plan)
            own = self._own_masks(plan)
            self._sample(plan, within(own, self._collect_masks(has_grammars)))
        else:
            has_grammars, own = self._request_masks(plan), self._own_masks(plan)
            if has_grammars or own:
                self._execute(plan)
                self._sample(plan, within(own, self._collect_masks(has_grammars)))
            else:
                self._start(plan)
        self._in_flight.append(plan)

    def _start(self, plan: StepPlan) -> None:
        with self._interrupts.allowed:
            self.runner.launch(plan)

    def _execute(self, plan: StepPlan) -> None:
        with self._interrupts.allowed:
            self.runner.execute(plan)

    def _sample(self, plan: StepPlan, masks: Sequence[RowBitmask]) -> None:
        with self._interrupts.allowed:
            self.runner.sample(plan.plan_id, masks)

    def _complete_step(self, outputs: list[EngineOutput]) -> None:
        """Wait for the tokens of the oldest step in flight and apply them."""
        plan = self._in_flight[0]
        with self._interrupts.allowed:
            result = self.runner.collect(plan.plan_id)
        self._in_flight.popleft()
        constrained = self._requests_with_grammar(plan) if self._num_grammars else {}
        fresh = self.scheduler.update(plan, result)
        outputs += fresh
        if self._budgets:
            self._budgets.accept(fresh)
        if constrained:
            self._advance_grammars(constrained, fresh)

    def _isolate(self, error: StepFailedError) -> None:
        """Discard the steps in flight after one has failed on several workers.

        Requests that are known to have failed end with their errors. If none is known, the requests
        of the step are computed alone from now on; if it had only one, that one has failed.
        """
        logger.warning("step %d failed: %s", error.plan_id, error, exc_info=error.__cause__)
        plans = [plan for plan in self._in_flight if plan.plan_id == error.plan_id]
        slots = [scheduled.slot for plan in plans for scheduled in plan.requests]
        owners = {slot: self.scheduler.request_in(slot) for slot in {*slots, *error.slots}}
        found = [owner for slot in slots if (owner := owners[slot]) is not None]
        suspects = list(dict.fromkeys(request.guided or request for request in found))
        reports = dict(error.slots)
        if not reports and len(suspects) == 1:
            reports = {slots[0]: error.report or report_of(error)}
        self._in_flight.clear()
        self.scheduler.discard_steps(have_failed=True)
        for slot, report in reports.items():
            if (owner := owners[slot]) is not None:
                self._fail(owner.request_id, report)
        if not reports:
            self.scheduler.isolate(suspects)

    def _requests_with_grammar(self, plan: StepPlan) -> dict[str, Request]:
        """Return the requests of a step that have a grammar, by id."""
        requests = (self.scheduler.request_in(scheduled.slot) for scheduled in plan.requests)
        return {r.request_id: r for r in requests if r is not None and r.has_grammar}

    def _is_undecided(self, plan: StepPlan) -> bool:
        """Whether a step in flight samples a token on which a mask of this step depends."""
        for _, request in self._sampling_rows(plan):
            num_unknown = request.num_expected_tokens - 1  # before the one of this step
            if num_unknown <= 0:
                continue
            if request.has_grammar or self._budgets.may_be_used_up(request.request_id, num_unknown):
                return True
        return False

    def _request_masks(self, plan: StepPlan) -> bool:
        """Request the masks of the rows sampled under a grammar; False if there are none."""
        if not self._num_grammars:
            return False
        rows = [
            (slot, request.request_id)
            for slot, request in self._sampling_rows(plan)
            if request.has_grammar
        ]
        if rows:
            self.grammars.request_masks(rows)
        return bool(rows)

    def _own_masks(self, plan: StepPlan) -> list[RowBitmask]:
        """Return the masks of rows that think with a budget, or with a grammar behind it."""
        if not (self._num_grammars or self._budgets):
            return []
        masks = [self._own_mask(slot, request) for slot, request in self._sampling_rows(plan)]
        return [mask for mask in masks if mask is not None]

    def _own_mask(self, slot: int, request: Request) -> RowBitmask | None:
        """Return the mask of a row that thinks.

        What a token has behind the end of the thinking would be lost to the grammar, so such a
        token is not sampled.
        """
        forced = self._budgets.mask(request.request_id, slot)
        if forced is not None or request.thinking_end is None:
            return forced
        token_ids = request.thinking_end.overrunning()
        return without(token_ids, slot, self._vocab_size) if token_ids else None

    def _sampling_rows(self, plan: StepPlan) -> list[tuple[int, Request]]:
        """Return the slots that sample, with their running requests."""
        rows = []
        for scheduled in plan.requests:
            request = self.scheduler.request_in(scheduled.slot) if scheduled.num_samples else None
            if request is not None and request.status is Status.RUNNING:
                rows.append((scheduled.slot, request))
        return rows

    def _collect_masks(self, has_grammars: bool) -> list[RowBitmask]:
        """Return the masks of a step's grammars, if they were requested."""
        if not has_grammars:
            return []
        with self._interrupts.allowed:
            masks = self.grammars.collect_masks()
        self._apply_grammar_news()  # a grammar that failed just now yields an error, not a token
        return masks

    def _advance_grammars(
        self, constrained: Mapping[str, Request], outputs: Sequence[EngineOutput]
    ) -> None:
        for output in outputs:
            request = constrained.get(output.request_id)
            if request is None:
                continue
            if output.finish_reason is not None:
                self._release_grammar(output.request_id)
            else:
                self._advance_grammar(request, output)

    def _advance_grammar(self, request: Request, output: EngineOutput) -> None:
        """Pass sampled tokens to the grammar; during thinking, activate it at the end marker.

        A token that would end the completion in its thinking is followed by the end marker.
        """
        end = request.thinking_end
        if end is None:
            self.grammars.accept(output.request_id, output.token_ids)
        elif end.is_in(output.token_ids):
            request.thinking_end = None
            self.grammars.activate(output.request_id)
        elif any(map(end.is_due_at, output.token_ids)):
            self._budgets.add(output.request_id, end.used_up_budget)

    def _release_grammar(self, request_id: str) -> None:
        self._num_grammars -= 1
        self._preparing.discard(request_id)
        self._grammar_waits.forget(request_id)
        self.grammars.release(request_id)

    def _collect_grammars(self) -> None:
        """Queue the requests whose grammars are ready; wait for one if nothing else can run."""
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
            self._grammar_waits.end(request_id)
            if error is not None:
                self._fail(request_id, report_of(error))
            elif is_new:
                self.scheduler.waiting.push(self.scheduler.requests[request_id])

    def _fail(self, request_id: str, report: ErrorReport) -> None:
        """End a request with an error; nothing happens if it was aborted meanwhile."""
        if (request := self._remove(request_id)) is not None:
            self._outbox.append(failed_output(request.message.request_id, report))

    def _remove(self, request_id: str) -> Request | None:
        """Remove a request and its grammar, and return it; None: it has ended already."""
        request = self.scheduler.remove(request_id)
        if request is not None:
            request_id = request.request_id
        self._budgets.release(request_id)
        if request is not None and request.has_grammar:
            self._release_grammar(request_id)
        return request

    def _refusal(self, request: Request) -> ErrorReport | None:
        if (report := self.scheduler.lateness(request)) is not None:
            return report
        kv, settings = self.scheduler.kv, self.scheduler.settings
        search = request.message.beam_search
        num_slots = min(settings.max_num_seqs, settings.max_running)
        if search is not None and search.beam_width > num_slots:
            return ErrorReport(
                CapacityError.code,
                f"a beam search of beam_width {search.beam_width} runs as many requests, and this "
                f"engine runs {num_slots} at the same time; ask for fewer beams, or start the "
                "engine with a larger --max-num-seqs",
            )
        if request.message.companion is not None and num_slots < 2:
            return ErrorReport(
                CapacityError.code,
                "a guided request runs as two requests, and this engine runs one at the same time; "
                "start it with --max-num-seqs 2 or more",
            )
        if not kv.can_ever_fit(request):
            return ErrorReport(
                CapacityError.code,
                f"prompt and completion may take {request.max_total_tokens} tokens, which need "
                f"{kv.blocks_to_finish(request)} KV blocks; the engine has {kv.pool.num_usable}. "
                "Ask for fewer tokens, or give the engine more memory",
            )
        limit = settings.max_num_queued
        if self.scheduler.num_queued >= limit:
            return ErrorReport(
                OverloadedError.code,
                f"{limit} requests are queued beyond those that can run (max_num_queued); try "
                "again later, or ask for fewer completions at once",
            )
        return None


def _max_steps_in_flight(num_stages: int, *, async_scheduling: bool) -> int:
    """Return how many steps may still be in flight when `EngineCore.step` returns.

    A single device with async scheduling has one more than the step that it computes. A pipeline
    has one for each stage, with or without async scheduling: the host plans while all stages but
    the first compute. One more step would keep the first stage from waiting for the host. But soon
    the decodes are spread over that many steps, and a row waits for its token and then behind one
    step more. In a simulation of stages bound by memory (20 ms in all, 64 decodes, a host that
    needs 0.3 ms), a token took 30.3 ms instead of 20.6 on two stages, and 25.2 instead of 20.5 on
    four; prompts alone gained 1.3 %.
    """
    return num_stages - 1 if num_stages > 1 else int(async_scheduling)
