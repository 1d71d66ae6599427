"""Decide which requests the next step computes, and with which KV blocks.

There is no prefill phase and no decode phase. Each request has tokens, and a number of tokens that
are computed; a step lets the second number catch up with the first, within one budget of tokens.
Those that lack one token come first, so a long prompt never starves a decode. What is left of the
budget is shared by prompts that run; up to half of it is open to requests that wait, if their
beginning fits, so that a short prompt need not wait for a long one to end. When the pool is short,
the last in the policy's order gives its blocks back and is computed again later.

Steps may be planned while others are in flight. A planned step counts as computed, so the next one
goes on behind it; what it draws is taken in when it lands. A request that leaves in the meantime
keeps its slot and its blocks until the last step planned before that has landed, and what such a
step draws for it is dropped.
"""

import time
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from quire.config import SchedulerSettings
from quire.engine.deadlines import Deadlines, report_of
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import NO_TRANSFERS, KVTransfers
from quire.engine.kv_store.store_queue import StoreQueue
from quire.engine.request import Request, Status
from quire.engine.results import ResultIntake
from quire.engine.scheduling.admission import Admission
from quire.engine.scheduling.block_commits import BlockCommits
from quire.engine.scheduling.fair_split import fair_shares
from quire.engine.scheduling.guarded_policy import GuardedPolicy
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.step_in_progress import Chunk, StepInProgress
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire.errors import InvalidRequestError
from quire.interfaces.scheduling import SchedulingPolicy
from quire.messages import (
    EngineOutput,
    EngineStats,
    ErrorReport,
    ScheduledRequest,
    StepPlan,
    StepResult,
)


class Scheduler:
    """Requests, within the budgets of one step: tokens, requests, adapters, blocks.

    Args:
        settings: The budgets.
        kv: Who owns which blocks.
        policy: Who goes first, who may begin, who has to go.
        max_adapters: LoRA adapters in one batch.
        transfers: An outside KV store, if there is one.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        max_adapters: int = 1,
        transfers: KVTransfers | None = None,
    ) -> None:
        self.settings = settings
        self.kv = kv
        self.transfers = transfers
        self.requests: dict[str, Request] = {}
        self.num_preemptions = 0
        num_slots = settings.max_num_seqs
        self._policy = GuardedPolicy(policy)
        self._waiting = WaitingQueue(self._policy)
        self._running = RunningSet(kv, num_slots, settings.max_running, max_adapters)
        self._decode_shares = [ScheduledRequest(slot, 1, 1) for slot in range(num_slots)]
        self._sharing = PromptSharing()
        self._block_commits = BlockCommits(kv, self._waiting, self._sharing, transfers)
        self._store = StoreQueue(kv, transfers)
        self._admission = Admission(
            settings, kv, self._policy, self._waiting, self._running, self._sharing, self._store
        )
        self._results = ResultIntake(kv, self._running, self._block_commits, self.remove)
        self._deadlines = Deadlines(settings.request_timeout_s)
        self._in_flight: deque[list[Chunk]] = deque()
        self._last_plan_id = 0

    @property
    def running(self) -> Sequence[Request]:
        """Those that run, in the policy's order."""
        return self._running.requests

    @property
    def waiting(self) -> WaitingQueue:
        """Those in the queue."""
        return self._waiting

    # -- requests come and go --------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Take in a request; it waits in the queue, or is prepared.

        Raises:
            InvalidRequestError: Its id is in use.
        """
        if request.request_id in self.requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        self._waiting.place(request)
        self.kv.prepare(request)
        self._deadlines.add(request)
        self.requests[request.request_id] = request
        if request.status is Status.WAITING:
            self._waiting.push(request)

    def make_ready(self, request: Request) -> None:
        """Queue a request that stood aside."""
        request.status = Status.WAITING
        self._waiting.push(request)

    def remove(self, request_id: str) -> Request | None:
        """Forget a request at any moment; what it owns is free as soon as no step uses it."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        if request.status is Status.RUNNING:
            self._leave(request)
        elif request.status is Status.WAITING:
            self._waiting.remove(request)
        elif request.status is Status.WAITING_FOR_PREFIX:
            self._sharing.leave(request)
        self._store.leave(request)
        request.status = Status.FINISHED
        if self.transfers is not None:
            self.transfers.forget_request(request)
        return request

    def late(self) -> list[tuple[Request, ErrorReport]]:
        """Return the requests whose time is up, with what to say to them."""
        now_s = time.monotonic()
        limit_s = self.settings.request_timeout_s
        late = self._deadlines.late(now_s)
        return [(request, report_of(request, now_s, limit_s)) for request in late]

    def request_in(self, slot: int) -> Request | None:
        """Return the request that owns a slot, or owned it when a step in flight was planned."""
        return self._running.by_slot[slot]

    @property
    def num_queued(self) -> int:
        """Requests beyond those that run and those for which there is a slot."""
        num_waiting = len(self.requests) - len(self._running)
        return max(0, num_waiting - self._running.num_free_slots)

    @property
    def is_quiescent(self) -> bool:
        """Whether no step is in flight and no block waits for one, or for a KV store."""
        num_open = 0 if self.transfers is None else self.transfers.num_open
        return not (self._in_flight or self._running.has_leaving or num_open)

    @property
    def is_waiting_for_store(self) -> bool:
        """Whether a KV store has something to end or to say."""
        return self._store.is_waiting

    def reset_prefix_cache(self) -> None:
        """Let no request find what was computed until now, here or in a KV store."""
        self.kv.reset()
        for request in self._running.requests:
            request.is_cacheable = False
            self._block_commits.withdraw(request)  # it keeps nothing that others could wait for
        if self.transfers is not None:
            self.transfers.reset()

    def set_drafts(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Guess the next tokens of a request that decodes; the worker verifies them.

        Returns:
            Whether the guess can be used: the last token is known and nothing is in flight for it.
        """
        request = self.requests.get(request_id)
        if request is None or request.status is not Status.RUNNING:
            return False
        if request.num_expected_tokens or request.num_pending_tokens != 1:
            return False
        if any(chunk.request is request for chunks in self._in_flight for chunk in chunks):
            return False
        room = request.last_computed - len(request.token_ids)
        request.draft_token_ids = list(token_ids[: max(0, room)])
        self.kv.set_next_check(request)
        return bool(request.draft_token_ids)

    def stats(self, num_scheduled_tokens: int) -> EngineStats:
        """Return a few numbers about now."""
        pool, prefix = self.kv.pool, self._admission.stats
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self.requests) - len(self._running),
            num_scheduled_tokens=num_scheduled_tokens,
            num_blocks=pool.num_usable,
            num_used_blocks=pool.num_used,
            num_cached_blocks=pool.num_cached,
            num_preemptions=self.num_preemptions,
            num_evictions=pool.num_evictions,
            num_prefix_queries=prefix.num_queries,
            num_prefix_hits=prefix.num_hits,
            prefix_hit_rate=prefix.hit_rate,
            num_store_hits=0 if self.transfers is None else self.transfers.num_hits,
        )

    # -- plan a step -----------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Choose the work of the next step; a plan without any is not to be executed."""
        step = StepInProgress(self.settings.max_num_batched_tokens)
        self._admission.call_back()
        prompts = self._schedule_decodes(step)
        if prompts or self._waiting:
            self._schedule_prompts(prompts, step)
        transfers = NO_TRANSFERS if self.transfers is None else self.transfers.plan_step()
        plan, chunks = step.finish(self._last_plan_id + 1, transfers)
        if has_work(plan):
            self._last_plan_id += 1
            self._in_flight.append(chunks)
        return plan

    def _schedule_decodes(self, step: StepInProgress) -> list[Request]:
        """Schedule all that lack one token; returns those that lack more."""
        shares, taken = self._decode_shares, step.decodes
        prompts = []
        for request in tuple(self._running.requests):
            computed = request.num_computed_tokens
            if len(request.token_ids) - computed > 1:
                prompts.append(request)
            elif computed < request.checkpoint or self._can_decode(request, step):
                request.num_computed_tokens = computed + 1
                taken.append(shares[request.slot])  # type: ignore[index]
        return [request for request in prompts if request.status is Status.RUNNING]

    def _can_decode(self, request: Request, step: StepInProgress) -> bool:
        """Whether one more token can be computed; its blocks are seen to."""
        if request.status is not Status.RUNNING or request.num_drafts_in_flight:
            return False
        if request.num_computed_tokens >= request.last_computed:
            return False  # its last token is on its way
        if request.draft_token_ids and self._schedule_drafts(request, step):
            return False
        return self._find_blocks(request, request.num_computed_tokens + 1, step)

    def _schedule_drafts(self, request: Request, step: StepInProgress) -> bool:
        """Let a request's drafts be verified, if the step has room for them."""
        drafts, request.draft_token_ids = request.draft_token_ids, []
        num_tokens = 1 + len(drafts)
        num_owed = len(self._running) - len(step.decodes) - len(step.chunks)
        total = request.num_computed_tokens + num_tokens
        is_too_much = num_tokens > step.budget_left - num_owed + 1
        if is_too_much or (added := self.kv.grow(request, total)) is None:
            return False
        step.note_blocks(request, added)
        step.add(request, num_tokens)
        step.drafts[request] = drafts
        request.num_drafts_in_flight = len(drafts)
        request.checkpoint = 0
        return True

    def _find_blocks(self, request: Request, num_tokens: int, step: StepInProgress) -> bool:
        """Find blocks for a running request, if need be at the cost of others."""
        while (added := self.kv.grow(request, num_tokens)) is None:
            step.is_short = True
            missing = self.kv.missing(request, num_tokens) - self.kv.pool.num_free
            if missing <= self._running.num_leaving_blocks:
                return False  # they are free as soon as the step in flight has landed
            victim = self._running.requests[self._policy.victim(self._running.requests)]
            if victim is request and not self.is_quiescent:
                return False  # a step in flight or a KV store may let go of blocks of its own
            self._preempt(victim, step)
            if victim is request:
                return False
        step.note_blocks(request, added)
        return True

    def _schedule_prompts(self, prompts: list[Request], step: StepInProgress) -> None:
        """Share what is left of the budget among prompts that run and requests that wait."""
        self._admission.open(prompts)
        budget = step.budget_left
        if prompts and not step.is_short:
            budget = max(len(prompts), budget - self._admission.demand(prompts, step))
        demands = [request.num_pending_tokens for request in prompts]
        for request, share in zip(prompts, _shares(prompts, demands, budget), strict=True):
            if share and request.status is Status.RUNNING:
                self._take_chunk(request, share, step)
        if not step.is_short:
            self._admission.admit(prompts, step)
        self._extend_chunks([request for request in prompts if request in step.chunks], step)

    def _take_chunk(self, request: Request, share: int, step: StepInProgress) -> None:
        if self._find_blocks(request, request.num_computed_tokens + share, step):
            step.add(request, share)

    def _extend_chunks(self, prompts: list[Request], step: StepInProgress) -> None:
        """Share what the queue did not need; nobody has to go for that."""
        taken = [step.chunks[request] for request in prompts]
        lacking = [r.num_pending_tokens - share for r, share in zip(prompts, taken, strict=True)]
        further = _shares(prompts, lacking, step.budget_left)
        for request, share, more in zip(prompts, taken, further, strict=True):
            if not more:
                continue
            added = self.kv.grow(request, request.num_computed_tokens + share + more)
            if added is not None:
                step.note_blocks(request, added)
                step.add(request, more)

    # -- and go ----------------------------------------------------------------------------------

    def _preempt(self, request: Request, step: StepInProgress) -> None:
        """Take everything from a request but its tokens; it will be computed again."""
        step.undo(request)
        expected = request.num_expected_tokens
        request.num_tokens_on_their_way = 1 if request.num_drafts_in_flight else expected
        self._leave(request)
        request.forget_progress()
        self.num_preemptions += 1
        self.make_ready(request)

    def _leave(self, request: Request) -> None:
        """Take a running request's slot and blocks; they are free when no step uses them."""
        if not self._in_flight:
            self._block_commits.commit(request, request.num_computed_tokens)
        self._block_commits.withdraw(request)
        self._running.leave(request, self._last_plan_id if self._in_flight else None)
        self._policy.ended(request)

    def forget_steps(self) -> None:
        """Let all that run begin again: steps in flight were interrupted, and will never land.

        What they computed is not known, so nothing of it is kept; a slot that is given out again
        is written anew. Tokens that were drawn and not heard of are drawn again, the same ones.
        """
        self._in_flight.clear()
        self._running.land(self._last_plan_id)
        for request in tuple(self._running.requests):
            request.is_cacheable = False
            self._leave(request)
            request.forget_progress()
            self.make_ready(request)
        for request in self._waiting:
            request.num_tokens_on_their_way = 0
        if self.transfers is not None:
            self.transfers.interrupt()

    # -- take in what a step computed ------------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Take in the oldest step in flight; requests that are over give everything back."""
        chunks = self._in_flight.popleft()
        outputs = self._results.take(result.results)
        self._commit_chunks(chunks)
        self._running.land(plan.plan_id)
        if result.transfers is not None and self.transfers is not None:
            for request in self.transfers.take(result.transfers):
                self.make_ready(request)
        if plan.stop_kv_store and self.transfers is not None:
            self.transfers.end_all()
        return outputs

    def _commit_chunks(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            request = chunk.request
            is_there = request.status is Status.RUNNING and request.slot == chunk.slot
            if is_there and chunk.end > request.num_committed_blocks * self.kv.block_size:
                self._block_commits.commit(request, chunk.end)


def _shares(prompts: Sequence[Request], demands: Sequence[int], budget: int) -> list[int]:
    """Share tokens: those of a better rank first, those of equal rank equally."""
    shares: list[int] = []
    for _, members in groupby(range(len(prompts)), key=lambda index: prompts[index].rank):
        part = fair_shares([demands[index] for index in members], budget)
        budget -= sum(part)
        shares += part
    return shares


def has_work(plan: StepPlan) -> bool:
    """Whether a worker has anything to do for a plan."""
    return bool(plan.requests) or plan.has_transfers
