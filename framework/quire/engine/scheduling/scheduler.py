"""The scheduler: decides which requests the next step computes, and with which KV blocks.

There is no prefill phase and no decode phase. Each request has tokens, and a number of computed
tokens; a step lets the second catch up with the first, within one budget of tokens. Requests that
lack one token come first, so a long prompt never starves a decode. The rest of the budget is split
among the running prompts; up to half of it is reserved for waiting requests that could start, so
that a short prompt need not wait for a long one to finish. When the pool is short, the policy's
victim (by default the last in its order) is preempted and computed again later.

Steps may be planned while others are in flight. The tokens of a planned step count as computed, so
the next step continues after them; its sampled tokens are applied when it completes. A request that
is preempted or removed in the meantime keeps its slot and blocks until the last step planned before
has completed. For a removed request, the tokens that such a step samples are dropped.

A pipeline has as many steps in flight as stages, and only its last stage samples. The first stage
needs the token of a decode, so a request whose next token is undecided waits until that step has
completed. The token then travels as a patch of the plan that computes it. Chunks of one prompt wait
for nothing: each of them may be on another stage. Of three stages, with six decodes and a prompt P:

    stage 0   a b P1   c d P2   e f P3   a b P4   c d P5
    stage 1            a b P1   c d P2   e f P3   a b P4
    stage 2                     a b P1   c d P2   e f P3
    patches                              a b      c d
    time      --------------------------------------------->

Each step takes its share of the decodes (`decode_spread`), so that every stage has work.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from quire.config import SchedulerSettings
from quire.engine.beam_search.beam_search import BeamSearch
from quire.engine.deadlines import Deadlines, timeout_report
from quire.engine.guidance import GuidedPair
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import NO_TRANSFERS, KVTransfers
from quire.engine.kv_store.store_queue import StoreQueue
from quire.engine.request import Request, Status
from quire.engine.request_group import RequestGroup
from quire.engine.results import ResultProcessor
from quire.engine.scheduling.admission import Admission
from quire.engine.scheduling.decode_spread import decode_quota
from quire.engine.scheduling.fair_split import split_fairly
from quire.engine.scheduling.guarded_policy import GuardedPolicy
from quire.engine.scheduling.isolation import Isolation
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.step_in_progress import Chunk, StepInProgress
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire.errors import RefusedError
from quire.interfaces.scheduling import SchedulingPolicy
from quire.messages import (
    EngineOutput,
    EngineStats,
    ErrorReport,
    ScheduledRequest,
    StepPlan,
    StepResult,
)

LAST_PLAN_ID = attrgetter("last_plan_id")


class Scheduler:
    """Plans steps within the budgets of tokens, requests, adapters and blocks.

    Args:
        settings: Budgets of a step.
        kv: Block tables and the prefix cache.
        policy: Policy of order, admission and preemption.
        max_adapters: Maximum number of LoRA adapters in a batch.
        transfers: Transfers of the external KV store, if there is one.
        verifies_drafts: Whether the workers verify draft tokens; if not, drafts are refused.
        pipeline_parallel_size: Number of pipeline stages.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        max_adapters: int = 1,
        transfers: KVTransfers | None = None,
        *,
        verifies_drafts: bool = False,
        pipeline_parallel_size: int = 1,
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
        self._decode_entries = [ScheduledRequest(slot, 1, 1) for slot in range(num_slots)]
        self._sharing = PromptSharing(self._waiting)
        self._store = None if transfers is None else StoreQueue(kv, transfers)
        self._admission = Admission(
            settings,
            kv,
            self._policy,
            self._waiting,
            self._running,
            self._sharing,
            self._store,
            self._start_member,
        )
        self._results = ResultProcessor(
            kv, self._running, self._sharing, transfers, self.remove, self._start_member
        )
        self._deadlines = Deadlines()
        self._isolation = Isolation()
        self._in_flight: deque[list[Chunk]] = deque()
        self._last_plan_id = 0
        self._verifies_drafts = verifies_drafts
        self._num_stages = pipeline_parallel_size

    @property
    def running(self) -> Sequence[Request]:
        """Running requests, in the policy's order."""
        return self._running.requests

    @property
    def waiting(self) -> WaitingQueue:
        """Queue of the requests that are ready to start."""
        return self._waiting

    # -- add and remove requests -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Add a request with a new id, and queue it unless it waits for its grammar.

        Raises:
            RequestFailedError: The policy failed, or the request's adapter has no content hash.
        """
        self._waiting.assign_key(request)
        self.kv.prepare(request)
        if request.deadline_s < math.inf:
            self._deadlines.add(request)
        if request.message.beam_search is not None:
            request.group = BeamSearch(request)
        if request.message.companion is not None:
            request.group = GuidedPair(request, request.message.companion)
            self.kv.prepare(request.group.companion)
        self.requests[request.request_id] = request
        if request.status is Status.WAITING:
            self._waiting.push(request)

    def remove(self, request_id: str) -> Request | None:
        """Remove a request at any time; its slot and blocks are freed when no step uses them.

        A member of a group is removed with all others, and the root of the group is returned.
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        group: RequestGroup | None = request.group
        for member in [request] if group is None else group.members:
            self._remove(member)
        return request if group is None else group.root

    def _remove(self, request: Request) -> None:
        self.requests.pop(request.request_id, None)  # that of a companion is there while it runs
        if request.status is Status.RUNNING:
            self._stop_running(request)
        elif request.status is Status.WAITING:
            self._waiting.remove(request)
        elif request.status is Status.WAITING_FOR_PREFIX:
            self._sharing.unfollow(request)
        if self._store is not None:
            self._store.remove(request)
        request.status = Status.FINISHED

    def _start_member(self, member: Request) -> None:
        """Give a new member of a group one of the slots that are reserved for it."""
        self.requests[member.request_id] = member
        self._running.add(member)
        self._policy.began(member)

    def pop_expired(self) -> list[tuple[Request, ErrorReport]]:
        """Return the requests whose deadline has passed, with their error reports."""
        now_s = time.monotonic()
        if now_s < self._deadlines.next_s:
            return []
        limit_s = self.settings.request_timeout_s
        expired = self._deadlines.pop_expired(now_s)
        return [(request, timeout_report(request, now_s, limit_s)) for request in expired]

    def lateness(self, request: Request) -> ErrorReport | None:
        """Return the error of a new request whose deadline has passed; None: it has time left."""
        if request.deadline_s == math.inf or (now_s := time.monotonic()) < request.deadline_s:
            return None
        return timeout_report(request, now_s, self.settings.request_timeout_s)

    def request_in(self, slot: int) -> Request | None:
        """Return the request that owns a slot, or owned it when a step in flight was planned."""
        return self._running.by_slot[slot]

    @property
    def num_queued(self) -> int:
        """Number of waiting requests beyond the number of free slots."""
        num_waiting = len(self.requests) - len(self._running)
        return max(0, num_waiting - self._running.num_free_slots)

    @property
    def is_quiescent(self) -> bool:
        """Whether no step is in flight, no block is still to be freed and no transfer is open."""
        return not (self._in_flight or self._running.has_deferred or self._has_transfers)

    @property
    def is_waiting_for_store(self) -> bool:
        """Whether a transfer or a lookup of the KV store is pending."""
        return self._store is not None and self._store.is_waiting

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache and the KV store's index; running requests commit no blocks."""
        self.kv.reset()
        for request in self._running.requests:
            request.is_cacheable = False
            self._sharing.withdraw(request)  # its blocks will not be cached
        if self.transfers is not None:
            self.transfers.reset()

    def set_drafts(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Set the draft tokens of a decoding request; the worker verifies them.

        Returns:
            Whether the drafts are used: the last token is known and nothing is in flight.

        Raises:
            RefusedError: The workers do not verify drafts, and would take them for right; or there
                are pipeline stages that would not know which of them are right.
        """
        if not self._verifies_drafts:
            raise RefusedError("draft tokens are refused: no worker of this engine verifies them")
        if self._num_stages > 1:
            raise RefusedError(
                "draft tokens are refused: of the pipeline stages of this engine, only the last "
                "would know which drafts are right; use --pipeline-parallel-size 1"
            )
        request = self.requests.get(request_id)
        if request is None or request.status is not Status.RUNNING or request.group:
            return False
        if request.sampler_state:
            return False  # its sampler steps must see one token before they get the next
        if request.num_expected_tokens or request.num_pending_tokens != 1:
            return False
        if any(chunk.request is request for chunks in self._in_flight for chunk in chunks):
            return False
        room = request.last_computed - len(request.token_ids)
        request.draft_token_ids = list(token_ids[: max(0, room)])
        self.kv.set_next_check(request)
        return bool(request.draft_token_ids)

    def stats(self, num_scheduled_tokens: int) -> EngineStats:
        """Return the current statistics."""
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
        """Plan the next step; a plan without work is not to be executed."""
        step = StepInProgress(self.settings.max_num_batched_tokens)
        if self._store is not None:
            for request in self._store.pop_ready(time.monotonic(), len(self._in_flight)):
                self._waiting.push(request)
        suspect = self._isolation.suspect
        if suspect is None or not self._schedule_alone(suspect, step):
            self._schedule_all(step)
        plan_id = self._last_plan_id + 1
        transfers = NO_TRANSFERS if self.transfers is None else self.transfers.plan_step(plan_id)
        plan, chunks = step.finish(plan_id, transfers)
        if self.has_work(plan):
            self._last_plan_id += 1
            self._in_flight.append(chunks)
        return plan

    def has_work(self, plan: StepPlan) -> bool:
        """Return whether a worker has anything to do: tokens to compute, or transfers to report."""
        return bool(plan.requests) or self._has_transfers

    @property
    def _has_transfers(self) -> bool:
        """Whether a transfer of the KV store is open, so that the store is polled in each step."""
        return self.transfers is not None and self.transfers.num_open > 0

    def _schedule_all(self, step: StepInProgress) -> None:
        """Schedule all requests that are ready, within the budgets."""
        is_single = self._num_stages == 1
        step.prompts = self._schedule_decodes(step) if is_single else self._spread_decodes(step)
        if step.prompts or self._waiting:
            self._schedule_prompts(step)

    def _schedule_alone(self, suspect: Request, step: StepInProgress) -> bool:
        """Schedule one request, once no step is in flight; False: there is no room for it."""
        if self._in_flight:
            return True
        if suspect.status is Status.RUNNING:
            if isinstance(suspect.group, GuidedPair):
                return self._schedule_pair_alone(suspect.group, step)
            num_tokens = min(suspect.num_pending_tokens, step.budget_left)
            self._schedule_chunk(suspect, num_tokens, step)
            has_news = self._num_stages > 1 or suspect.group is not None
            if has_news and suspect in step.chunks:
                step.patch(suspect)
        elif suspect.status is Status.WAITING:
            self._admission.begin_step(step)
            self._admission.admit_alone(suspect, step)
        return suspect in step.chunks

    def _schedule_decodes(self, step: StepInProgress) -> list[Request]:
        """Schedule the requests that lack one token, and return those that lack more."""
        entries, taken = self._decode_entries, step.decodes
        prompts = []
        for request in tuple(self._running.requests):
            computed = request.num_computed_tokens
            if len(request.token_ids) - computed > 1:
                prompts.append(request)
            elif computed < request.next_check or self._can_decode(request, step):
                request.num_computed_tokens = computed + 1
                taken.append(entries[request.slot])  # type: ignore[index]
        return [request for request in prompts if request.status is Status.RUNNING]

    def _spread_decodes(self, step: StepInProgress) -> list[Request]:
        """Schedule a pipeline's share of the decodes, and return the requests that lack more.

        A request whose next token is undecided counts as a decode, but waits for that token.
        """
        prompts, ready = [], []
        for request in self._running.requests:
            num_lacking = len(request.token_ids) - request.num_computed_tokens
            if num_lacking > 1:
                prompts.append(request)
            elif num_lacking == 1:
                ready.append(request)
        num_decodes = len(self._running) - len(prompts)
        quota = decode_quota(num_decodes, self._num_stages, self._last_plan_id)
        if len(ready) > quota:
            ready.sort(key=LAST_PLAN_ID)  # those that waited longest first
        for request in ready:
            if len(step.decodes) >= quota:
                break
            if request.num_computed_tokens < request.next_check or self._can_decode(request, step):
                request.num_computed_tokens += 1
                request.last_plan_id = self._last_plan_id + 1
                step.decodes.append(self._decode_entries[request.slot])  # type: ignore[index]
                step.patch(request)
        return [request for request in prompts if request.status is Status.RUNNING]

    def _can_decode(self, request: Request, step: StepInProgress) -> bool:
        """Whether one more token can be computed; allocates its blocks if so."""
        if request.status is not Status.RUNNING or request.num_drafts_in_flight:
            return False
        if request.num_computed_tokens >= request.last_computed:
            return False  # its last token is in flight
        if request.draft_token_ids and self._schedule_drafts(request, step):
            return False
        if isinstance(request.group, GuidedPair):
            if request is request.group.root and request.group.is_in_step:
                self._schedule_pair(request.group, step)
            return False
        if request.group is not None:
            return self._can_decode_beam(request, step)
        return self._allocate_blocks(request, request.num_computed_tokens + 1, step)

    def _can_decode_beam(self, request: Request, step: StepInProgress) -> bool:
        """Whether the next token of a beam is selected and can be computed, not as a chunk."""
        if request.num_computed_tokens == len(request.token_ids):
            return False  # it waits for the other beams
        if request.needs_assignment:
            self._schedule_chunk(request, 1, step)
            return False
        is_ready = self._allocate_blocks(request, request.num_computed_tokens + 1, step)
        if is_ready:
            step.patch(request)
        return is_ready

    def _schedule_pair(self, pair: GuidedPair, step: StepInProgress) -> bool:
        """Schedule the next token of a guided request and its companion, if it fits for both."""
        for member in pair.members:
            if not self._allocate_blocks(member, member.num_computed_tokens + 1, step):
                return False
        for member in pair.members:
            self._decode(member, step)
        return True

    def _decode(self, request: Request, step: StepInProgress) -> None:
        """Schedule the next token of a running request, whose blocks are allocated."""
        if self._num_stages > 1:
            request.last_plan_id = self._last_plan_id + 1
            step.patch(request)
        if request.needs_assignment:
            step.add(request, 1)
        else:
            request.num_computed_tokens += 1
            step.decodes.append(self._decode_entries[request.slot])  # type: ignore[index]

    def _schedule_pair_alone(self, pair: GuidedPair, step: StepInProgress) -> bool:
        """Schedule a guided request and its companion; False: there is no room for them."""
        if pair.is_in_step:
            return self._schedule_pair(pair, step)
        for member in pair.members:
            if num_tokens := min(member.num_prefill_tokens, step.budget_left):
                self._schedule_chunk(member, num_tokens, step)
        return bool(step.chunks)

    def _schedule_drafts(self, request: Request, step: StepInProgress) -> bool:
        """Schedule a request's draft tokens, if the budget and the pool allow it."""
        drafts, request.draft_token_ids = request.draft_token_ids, []
        num_tokens = 1 + len(drafts)
        num_reserved = len(self._running) - len(step.decodes) - len(step.chunks)
        total = request.num_computed_tokens + num_tokens
        is_too_much = num_tokens > step.budget_left - num_reserved + 1
        if is_too_much or (added := self.kv.grow(request, total)) is None:
            return False
        step.note_blocks(request, added)
        step.add(request, num_tokens)
        step.drafts[request] = drafts
        request.num_drafts_in_flight = len(drafts)
        request.next_check = 0
        return True

    def _allocate_blocks(self, request: Request, num_tokens: int, step: StepInProgress) -> bool:
        """Allocate blocks for a running request, preempting others if necessary."""
        while (added := self.kv.grow(request, num_tokens)) is None:
            step.is_short = True
            missing = sum(self.kv.missing(request, num_tokens)) - self.kv.pool.num_free
            if missing <= self._running.num_deferred_blocks:
                return False  # they become free when the step in flight has completed
            victim = self._running.requests[self._policy.victim(self._running.requests)]
            is_itself = victim is request or victim.group is request.group is not None
            if is_itself and not self.is_quiescent:
                return False  # a step in flight or a KV transfer may free blocks soon
            self._preempt(victim, step)
            if request.status is not Status.RUNNING:
                return False
        step.note_blocks(request, added)
        return True

    def _schedule_prompts(self, step: StepInProgress) -> None:
        """Split the rest of the budget among running prompts and waiting requests."""
        self._admission.begin_step(step)
        prompts, budget = step.prompts, step.budget_left
        if prompts and not step.is_short:
            budget = max(len(prompts), budget - self._admission.tokens_to_reserve(step))
        demands = [request.num_prefill_tokens for request in prompts]
        for request, num_tokens in zip(prompts, _split(prompts, demands, budget), strict=True):
            if num_tokens and request.status is Status.RUNNING:
                self._schedule_chunk(request, num_tokens, step)
        if not step.is_short:
            self._admission.admit(step)
        self._extend_chunks([r for r in prompts if r.status is Status.RUNNING], step)

    def _schedule_chunk(self, request: Request, num_tokens: int, step: StepInProgress) -> None:
        if self._allocate_blocks(request, request.num_computed_tokens + num_tokens, step):
            step.add(request, num_tokens)

    def _extend_chunks(self, prompts: list[Request], step: StepInProgress) -> None:
        """Split the tokens that admission left over among the prompts, without preemption."""
        taken = [step.chunks.get(request, 0) for request in prompts]
        lacking = [r.num_prefill_tokens - count for r, count in zip(prompts, taken, strict=True)]
        further = _split(prompts, lacking, step.budget_left)
        for request, num_tokens, more in zip(prompts, taken, further, strict=True):
            if not more:
                continue
            added = self.kv.grow(request, request.num_computed_tokens + num_tokens + more)
            if added is not None:
                step.note_blocks(request, added)
                step.add(request, more)

    # -- preempt and discard ---------------------------------------------------------------------

    def _preempt(self, request: Request, step: StepInProgress) -> None:
        """Preempt a request: free its slot and blocks, keep its tokens, and queue it again.

        The other members of a group would wait for it, so they are preempted too.
        """
        group: RequestGroup | None = request.group
        for member in [request] if group is None else tuple(group.members):
            if member.status is not Status.RUNNING:
                continue
            step.undo(member)
            expected = 1 if member.num_drafts_in_flight else member.num_expected_tokens
            if isinstance(group, BeamSearch) and not group.awaits_row(member):
                expected = 0
            member.num_tokens_in_flight = expected
            self._restart(member)
            self.num_preemptions += 1

    def _restart(self, request: Request) -> None:
        """Queue a running request again, to be computed from its first token."""
        if isinstance(request.group, BeamSearch) and request.group.forget(request):
            self._remove(request)
            return
        self._stop_running(request)
        request.reset_progress()
        if request.guided is None:
            self._waiting.push(request)
        else:
            del self.requests[request.request_id]
            request.status = Status.STANDING_BY

    def _stop_running(self, request: Request) -> None:
        """Remove a request from the running set; its slot and blocks are freed when unused."""
        if not self._in_flight:
            self._results.commit(request, request.num_computed_tokens)
        if request.promised_hashes:
            self._sharing.withdraw(request)
        self._running.remove(request, self._last_plan_id if self._in_flight else None)
        self._policy.ended(request)

    def discard_steps(self, *, have_failed: bool = False) -> None:
        """Restart all running requests: the steps in flight never complete.

        Their KV may be incomplete, so none of it is kept, and slots are assigned anew. Sampled
        tokens that the host did not receive are sampled again, with the same result.

        Args:
            have_failed: True if a step failed, and all workers have dropped the steps in flight and
                have received their transfers; False if it was interrupted, so that it is not known
                what they have received, and transfers are sent again.
        """
        self._in_flight.clear()
        self._running.complete_step(self._last_plan_id)
        for request in tuple(self._running.requests):
            request.is_cacheable = False
            self._restart(request)
        for request in self._waiting:
            for member in [request] if request.group is None else request.group.members:
                member.num_tokens_in_flight = 0
        if self.transfers is not None:
            self.transfers.confirm_sent() if have_failed else self.transfers.interrupt()

    def isolate(self, requests: Iterable[Request]) -> None:
        """Compute requests alone, one after another, until each has sampled a token or ended.

        To be called after `discard_steps`.
        """
        self._isolation.begin(request.guided or request for request in requests)

    # -- apply the results of a step -------------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Apply the results of the oldest step in flight, and remove the finished requests."""
        chunks = self._in_flight.popleft()
        if (suspect := self._isolation.suspect) is not None:
            self._clear_if_sampled(suspect, result)
        outputs = self._results.apply(result.results)
        self._results.commit_chunks(chunks)
        self._running.complete_step(plan.plan_id)
        if self.transfers is not None:
            self._apply_transfers(self.transfers, plan, result)
        return outputs

    def _apply_transfers(self, transfers: KVTransfers, plan: StepPlan, result: StepResult) -> None:
        if result.transfers is not None:
            for request in transfers.apply_report(result.transfers):
                self._waiting.push(request)
        if plan.stop_kv_store:
            transfers.end_all()
        transfers.confirm(plan.plan_id)

    def _clear_if_sampled(self, suspect: Request, result: StepResult) -> None:
        slots = [row.slot for row in result.results if row.token_ids]
        if any(self.request_in(slot) is suspect for slot in slots):
            self._isolation.note_sampled(suspect)


def _split(prompts: Sequence[Request], demands: Sequence[int], budget: int) -> list[int]:
    """Split tokens: prompts of a better rank first, prompts of equal rank equally."""
    num_tokens: list[int] = []
    for _, members in groupby(range(len(prompts)), key=lambda index: prompts[index].rank):
        part = split_fairly([demands[index] for index in members], budget)
        budget -= sum(part)
        num_tokens += part
    return num_tokens
