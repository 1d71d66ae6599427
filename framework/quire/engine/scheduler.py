"""Decide which requests the next step computes, and with which KV blocks.

There is no prefill phase and no decode phase. Each request has tokens, and a number of tokens that
are computed; a step lets the second number catch up with the first, within one budget of tokens.
Running requests come first, in order of arrival, so a long prompt never starves a decode; when the
pool is short, the request that came last gives its blocks back and is computed again later.
"""

from collections import deque
from collections.abc import Iterable

from quire.config import SchedulerSettings
from quire.engine.kv_cache import KVCacheManager
from quire.engine.request import Request, Status
from quire.messages import (
    EngineOutput,
    EngineStats,
    ErrorReport,
    NewBlocks,
    ScheduledRequest,
    SlotAssignment,
    SlotResult,
    StepPlan,
    StepResult,
)


class Scheduler:
    """First come, first served, within the budgets of one step: tokens, requests, adapters."""

    def __init__(self, settings: SchedulerSettings, kv: KVCacheManager, max_adapters: int) -> None:
        self.settings = settings
        self.kv = kv
        self.max_adapters = max_adapters
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.num_preemptions = 0
        self._free_slots = list(range(settings.max_num_seqs - 1, -1, -1))
        self._by_slot: dict[int, Request] = {}
        self._next_plan_id = 0

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.requests[request.request_id] = request
        if request.status is Status.WAITING:
            self.waiting.append(request)

    def make_ready(self, request: Request) -> None:
        """Queue a request that was being prepared."""
        request.status = Status.WAITING
        self.waiting.append(request)

    def remove(self, request_id: str) -> Request | None:
        """Forget a request at any moment; its blocks and its slot are free at once."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._release(request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        return request

    def schedule(self) -> StepPlan:
        """Choose the work of the next step."""
        step = _StepInProgress(self.settings.max_num_batched_tokens)
        self._schedule_running(step)
        if not step.has_preempted:
            self._schedule_waiting(step)
        self._next_plan_id += 1
        return StepPlan(
            plan_id=self._next_plan_id,
            requests=step.requests,
            assignments=step.assignments,
            new_blocks=step.new_blocks,
        )

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Take in what a step computed; requests that are over give everything back."""
        for share in plan.requests:
            if share.slot in self._by_slot:
                self._by_slot[share.slot].num_computed_tokens += share.num_tokens
        return [
            self._update_request(self._by_slot[row.slot], row)
            for row in result.results
            if row.slot in self._by_slot
        ]

    def request_in(self, slot: int) -> Request:
        """Return the request that owns a slot."""
        return self._by_slot[slot]

    def stats(self, num_scheduled_tokens: int) -> EngineStats:
        """Return a few numbers about now."""
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.requests) - len(self.running),
            num_scheduled_tokens=num_scheduled_tokens,
            num_blocks=self.kv.pool.num_usable,
            num_used_blocks=self.kv.pool.num_used,
            num_preemptions=self.num_preemptions,
        )

    def _schedule_running(self, step: "_StepInProgress") -> None:
        index = 0
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            index += 1
            num_others = len(self.running) - index  # each is owed a token: decodes go on
            share = max(1, step.budget - num_others)
            num_tokens = min(share, request.num_pending_tokens)
            added = self._grow_or_preempt(request, num_tokens, step)
            if added is None:
                return  # the request itself was the last one, and had to go
            step.take(request, num_tokens, added)

    def _grow_or_preempt(
        self, request: Request, num_tokens: int, step: "_StepInProgress"
    ) -> list[list[int]] | None:
        """Find blocks for a running request, if need be at the cost of those that came later."""
        while (added := self.kv.grow(request, num_tokens)) is None:
            victim = self.running[-1]
            self._preempt(victim)
            step.has_preempted = True
            if victim is request:
                return None
        return added

    def _schedule_waiting(self, step: "_StepInProgress") -> None:
        while self.waiting and step.budget > 0 and self._free_slots:
            request = self.waiting[0]
            num_tokens = self._first_share(request, step.budget)
            if num_tokens == 0 or not self._has_adapter_room(request):
                return
            if self.running and not self.kv.has_room_for(request, len(self.running)):
                return
            if self.kv.grow(request, num_tokens) is None:
                return
            self.waiting.popleft()
            self._admit(request)
            step.take_new(request, num_tokens)

    def _first_share(self, request: Request, budget: int) -> int:
        """Return how many tokens a waiting request may start with; 0 if it must wait."""
        pending = request.num_pending_tokens
        if pending <= budget or self.settings.enable_chunked_prefill:
            return min(pending, budget)
        is_alone = budget == self.settings.max_num_batched_tokens
        return budget if is_alone else 0  # longer than any step: cut after all, or it never runs

    def _has_adapter_room(self, request: Request) -> bool:
        adapter = request.message.adapter
        if adapter is None:
            return True
        in_use = {r.message.adapter for r in self.running if r.message.adapter is not None}
        return adapter in in_use or len(in_use) < self.max_adapters

    def _admit(self, request: Request) -> None:
        request.slot = self._free_slots.pop()
        request.status = Status.RUNNING
        self.running.append(request)
        self._by_slot[request.slot] = request

    def _preempt(self, request: Request) -> None:
        """Take everything from a request but its tokens; it will be computed again."""
        self.running.remove(request)
        self._release(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = Status.WAITING
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        self.kv.release(request)
        if request.slot is not None:
            del self._by_slot[request.slot]
            self._free_slots.append(request.slot)
            request.slot = None

    def _update_request(self, request: Request, row: SlotResult) -> EngineOutput:
        if row.error is not None:
            self.remove(request.request_id)
            return failed_output(request.request_id, row.error)
        taken, finish_reason, stop_reason = request.append(row.token_ids)
        if finish_reason is not None:
            self.remove(request.request_id)
        return EngineOutput(
            request_id=request.request_id,
            token_ids=taken,
            logprobs=None if row.logprobs is None else row.logprobs[: len(taken)],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )


class _StepInProgress:
    """The plan of a step while it is being made."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.has_preempted = False
        self.requests: list[ScheduledRequest] = []
        self.assignments: list[SlotAssignment] = []
        self.new_blocks: list[NewBlocks] = []

    def take(self, request: Request, num_tokens: int, added: Iterable[list[int]]) -> None:
        """Schedule a running request, and note the blocks that were added to its tables."""
        slot = self._share(request, num_tokens)
        self.new_blocks += [
            NewBlocks(slot, group, block_ids) for group, block_ids in enumerate(added) if block_ids
        ]

    def take_new(self, request: Request, num_tokens: int) -> None:
        """Schedule a request that has just received its slot."""
        self._share(request, num_tokens)
        self.assignments.append(request.assignment())

    def _share(self, request: Request, num_tokens: int) -> int:
        if request.slot is None:
            raise RuntimeError(f"request {request.request_id} is scheduled without a slot")
        num_samples = int(num_tokens == request.num_pending_tokens)
        self.requests.append(ScheduledRequest(request.slot, num_tokens, num_samples))
        self.budget -= num_tokens
        return request.slot


def failed_output(request_id: str, error: ErrorReport) -> EngineOutput:
    """Return the last output of a request that failed."""
    return EngineOutput(request_id=request_id, token_ids=[], finish_reason="error", error=error)
