"""Admission of waiting requests to a step, in the policy's order.

The first request that does not fit blocks all requests behind it, so it cannot starve. Later
requests bypass a request only if that does not delay it: while it waits for blocks that another
request computes or a KV store loads, for an adapter slot, or for its turn among partial prefills.
"""

from collections.abc import Callable

from quire.config import SchedulerSettings
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_cache.prefix_stats import PrefixStats
from quire.engine.kv_store.store_queue import StoreQueue
from quire.engine.request import AdmissionAttempt, Request, Status
from quire.engine.scheduling.chunked_prefill import PartialPrefills
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.step_in_progress import StepInProgress
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire.interfaces.scheduling import SchedulingPolicy

MAX_EXAMINED_PER_STEP = 256  # waiting requests
RETRY_INTERVAL_STEPS = 32  # between prefix lookups of a blocked request: O(prefix length) each


class Admission:
    """Moves requests from the waiting queue to the running set.

    Args:
        settings: Budgets of a step.
        kv: Block tables and the prefix cache.
        policy: Policy of order and admission.
        waiting: Queue of the requests.
        running: Running set.
        sharing: Requests that wait for blocks of others.
        store: Queue for the external KV store, if there is one.
        start_member: Gives a companion the slot that is reserved for it.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        waiting: WaitingQueue,
        running: RunningSet,
        sharing: PromptSharing,
        store: StoreQueue | None,
        start_member: Callable[[Request], None],
    ) -> None:
        self.stats = PrefixStats()
        self._settings = settings
        self._kv = kv
        self._policy = policy
        self._waiting = waiting
        self._running = running
        self._sharing = sharing
        self._store = store
        self._start_member = start_member
        self._num_steps = 0
        self._num_available_blocks = 0  # free, and not needed soon by running requests
        self._has_adapter_waiting = False
        self._partial_prefills: PartialPrefills | None = None  # made when a request does not fit

    def begin_step(self, step: StepInProgress) -> None:
        """Begin a step: compute how many blocks are free beyond what running requests need soon."""
        self._num_steps += 1
        reserved = sum(self._kv.num_still_needed(request) for request in step.prompts)
        reserved += len(self._kv.specs) * len(self._running)
        self._num_available_blocks = self._kv.pool.num_free - reserved

    def tokens_to_reserve(self, step: StepInProgress) -> int:
        """Return the number of tokens to reserve for waiting requests that could start now.

        All tokens that requests of a better rank than the last running prompt can use, and at most
        half of the budget for requests of the same rank.
        """
        budget, last_rank = step.budget_left, step.prompts[-1].rank
        allows_partial = len(step.prompts) < self._settings.max_num_partial_prefills
        urgent = others = 0
        for index in range(min(self._running.num_free_slots, len(self._waiting))):
            request = self._waiting[index]
            if self._lacks_blocks(request) or last_rank < request.rank or urgent + others >= budget:
                break
            pending = request.num_prefill_tokens
            if request.rank < last_rank:
                urgent += pending
            elif allows_partial or pending <= budget // 2:
                others += pending
        return min(budget, urgent + min(others, budget // 2))

    def admit(self, step: StepInProgress) -> None:
        """Start waiting requests while the budgets allow, and add them to the step."""
        self._partial_prefills = None
        self._has_adapter_waiting = False
        index = 0
        for _ in range(MAX_EXAMINED_PER_STEP):
            if index >= len(self._waiting) or step.budget_left <= 0:
                return
            request = self._waiting[index]
            if not self._running.has_slot_for(request):
                return
            allows_bypass = self._try_admit(request, step)
            if request.status is Status.WAITING:
                if not allows_bypass:
                    return
                index += 1

    def admit_alone(self, request: Request, step: StepInProgress) -> None:
        """Start one waiting request if its blocks are free, and add it to the step."""
        if request.num_tokens_in_flight or not self._running.has_slot_for(request):
            return
        self._partial_prefills = None
        self._try_admit_after_hit(self._kv.find_prefix(request), request, step)

    def _try_admit(self, request: Request, step: StepInProgress) -> bool:
        """Start or defer a request. If it stays queued: return whether others may bypass it."""
        if request.num_tokens_in_flight:
            return False
        if self._waits_for_adapter(request):
            return True
        attempt = self._recent_attempt(request)
        if attempt is not None:  # do not repeat the prefix lookup
            if self._first_chunk(request, attempt.num_hit_blocks, step) is None:
                return self._allows_bypass
            if self._lacks_blocks(request):
                return False
        hit = self._kv.find_prefix(request)
        if self._try_defer(request, hit):
            return True
        return self._try_admit_after_hit(hit, request, step)

    def _try_admit_after_hit(
        self, hit: PrefixHit | None, request: Request, step: StepInProgress
    ) -> bool:
        """Start the request after a prefix hit, or record the attempt; returns as `_try_admit`."""
        num_hit_blocks = 0 if hit is None else hit.num_blocks
        needed = self._kv.needed_to_begin(request, hit)
        if request.companion is not None:
            needed += self._kv.needed_to_begin(request.companion, None)
        request.last_attempt = AdmissionAttempt(self._num_steps, num_hit_blocks, needed)
        num_tokens = self._first_chunk(request, num_hit_blocks, step)
        if num_tokens is None:
            return self._allows_bypass
        running = self._running.requests
        if self._lacks_blocks(request) or (running and not self._policy.admits(request, running)):
            return False
        if self._start(request, hit, num_tokens):
            num_members = 1 if request.companion is None else 2
            self._num_available_blocks -= needed + num_members * len(self._kv.specs)
            request.needs_assignment = True
            if num_tokens:
                step.add(request, num_tokens)
            if request.companion is not None:
                self._start_companion(request.companion, step)
        return False

    def _start_companion(self, companion: Request, step: StepInProgress) -> None:
        """Start a companion beside the request that it guides, with what the step has left."""
        hit = self._kv.find_prefix(companion)
        if hit is not None:
            self._kv.attach_prefix(companion, hit)
        self._start_member(companion)
        companion.needs_assignment = True
        num_hit_blocks = companion.num_computed_tokens // self._kv.block_size
        if self._kv.has_cache and (hashes := self._kv.hashes_after(companion, num_hit_blocks)):
            self._sharing.promise(companion, hashes)
        num_tokens = min(companion.num_prefill_tokens, step.budget_left)
        num_computed = companion.num_computed_tokens + num_tokens
        if num_tokens and self._kv.grow(companion, num_computed) is not None:
            step.add(companion, num_tokens)

    def _waits_for_adapter(self, request: Request) -> bool:
        """Whether the request waits for an adapter slot, or behind another that does.

        Only requests without an adapter may bypass it: they need no adapter slot.
        """
        if request.adapter is not None and not self._has_adapter_waiting:
            self._has_adapter_waiting = not self._running.has_room_for(request.adapter)
        return request.adapter is not None and self._has_adapter_waiting

    def _recent_attempt(self, request: Request) -> AdmissionAttempt | None:
        """Return the request's last failed attempt, if it is recent."""
        last = request.last_attempt
        is_recent = last is not None and self._num_steps - last.step_index < RETRY_INTERVAL_STEPS
        return last if is_recent else None

    def _lacks_blocks(self, request: Request) -> bool:
        """Whether the request is known not to fit; always False if nothing is running."""
        attempt = request.last_attempt
        is_short = attempt is not None and attempt.num_needed_blocks > self._num_available_blocks
        return is_short and bool(len(self._running))

    def _first_chunk(
        self, request: Request, num_hit_blocks: int, step: StepInProgress
    ) -> int | None:
        """Return the number of tokens to start a request with after a hit; None: it must wait.

        It is 0 if the last token is the only one, and is computed together with a companion's.
        """
        num_held_back = 0 if request.group is None else request.group.num_held_back
        num_known = len(request.token_ids) - num_held_back
        pending = num_known - num_hit_blocks * self._kv.block_size
        if pending <= step.budget_left:
            return pending
        if self._partial_prefills is None:
            self._partial_prefills = PartialPrefills(self._settings, step)
        return self._partial_prefills.first_chunk(request, pending, step) or None

    @property
    def _allows_bypass(self) -> bool:
        """Whether prompts that fit the step may bypass a long prompt that has to wait.

        With chunked prefill the long prompt waits only for running prompts, so it cannot starve.
        Without, it waits for an empty step, and would starve.
        """
        return self._settings.enable_chunked_prefill

    def _start(self, request: Request, hit: PrefixHit | None, num_tokens: int) -> bool:
        """Allocate blocks and a slot; if the pool is short, return False and change nothing."""
        if hit is not None:
            self._kv.attach_prefix(request, hit)
        num_hit_tokens = request.num_computed_tokens
        if self._kv.grow(request, num_hit_tokens + num_tokens) is None:
            self._kv.free(self._kv.detach_tables(request))
            request.num_computed_tokens = 0
            return False
        self._waiting.remove(request)
        request.last_attempt = None
        self._running.add(request)
        self._policy.began(request)
        if not self._kv.has_cache:
            return True
        if request.num_preemptions == 0 and request.reads_cache:
            request.num_cached_tokens = num_hit_tokens
            self.stats.record(request.num_prompt_tokens, num_hit_tokens)
        num_hit_blocks = num_hit_tokens // self._kv.block_size
        if hashes := self._kv.hashes_after(request, num_hit_blocks):
            self._sharing.promise(request, hashes)
        return True

    def _try_defer(self, request: Request, hit: PrefixHit | None) -> bool:
        """Defer a request whose missing blocks another request computes or a KV store loads."""
        if not (self._kv.has_cache and request.reads_cache):
            return False
        lacking = self._kv.hashes_after(request, 0 if hit is None else hit.num_blocks)
        status: Status | None = None
        follows = bool(lacking) and self._sharing.follow(request, lacking)
        if follows or self._follows_for_companion(request):
            status = Status.WAITING_FOR_PREFIX
        elif lacking and self._store is not None:
            status = self._store.try_defer(request, hit, len(self._running))
        if status is None:
            return False
        self._waiting.remove(request)
        request.status = status
        return True

    def _follows_for_companion(self, request: Request) -> bool:
        """Make a request follow another one that computes most of its companion's prompt."""
        companion = request.companion
        if companion is None:
            return False
        hit = self._kv.find_prefix(companion)
        lacking = self._kv.hashes_after(companion, 0 if hit is None else hit.num_blocks)
        return bool(lacking) and self._sharing.follow(request, lacking)
