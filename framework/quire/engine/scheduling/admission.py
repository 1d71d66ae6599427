"""Who of those that wait may begin, with how much, and who stands aside for now.

Strictly in the policy's order: the first that does not fit stops all behind it, so that nobody can
starve it. Past a request go only those for whom standing aside costs nothing: it waits for blocks
that another request computes at the moment or that a KV store brings, or it is a long prompt and
too many of those are being computed already.
"""

import time
from collections.abc import Sequence

from quire.config import SchedulerSettings
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_cache.prefix_stats import PrefixStats
from quire.engine.kv_store.store_queue import StoreQueue
from quire.engine.request import LastLook, Request, Status
from quire.engine.scheduling.partial_prefills import PartialPrefills
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.step_in_progress import StepInProgress
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire.interfaces.scheduling import SchedulingPolicy

MAX_LOOKED_AT = 256  # requests, in a step
LOOK_EVERY = 32  # steps, while a request cannot begin: a look takes as long as its beginning is


class Admission:
    """The way from the queue to the running ones."""

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        waiting: WaitingQueue,
        running: RunningSet,
        sharing: PromptSharing,
        store: StoreQueue,
    ) -> None:
        self.stats = PrefixStats()
        self._settings = settings
        self._kv = kv
        self._policy = policy
        self._waiting = waiting
        self._running = running
        self._sharing = sharing
        self._store = store
        self._num_steps = 0
        self._num_spare_blocks = 0  # free, and not needed soon by those that run
        self._has_adapter_waiting = False

    def call_back(self) -> None:
        """Queue those again that have waited for a KV store long enough."""
        for request in self._store.call_back(time.monotonic()):
            request.status = Status.WAITING
            self._waiting.push(request)

    def open(self, prompts: Sequence[Request]) -> None:
        """Begin a step: see how many blocks are free beyond what running requests need soon.

        Args:
            prompts: The running requests that lack more than one token.
        """
        self._num_steps += 1
        reserved = sum(self._kv.still_to_take(request) for request in prompts)
        reserved += len(self._kv.specs) * len(self._running)
        self._num_spare_blocks = self._kv.pool.num_free - reserved

    def demand(self, prompts: Sequence[Request], step: StepInProgress) -> int:
        """Return how many tokens to keep for requests that could begin now.

        All that those of a better rank than a running prompt can use; and half of the budget, at
        most, for those of the same rank.
        """
        budget, last_rank = step.budget_left, prompts[-1].rank
        is_room_in_pieces = len(prompts) < self._settings.max_num_partial_prefills
        urgent = others = 0
        for index in range(min(self._running.num_free_slots, len(self._waiting))):
            request = self._waiting[index]
            if self._lacks_blocks(request) or last_rank < request.rank or urgent + others >= budget:
                break
            pending = request.num_pending_tokens
            if request.rank < last_rank:
                urgent += pending
            elif is_room_in_pieces or pending <= budget // 2:
                others += pending
        return min(budget, urgent + min(others, budget // 2))

    def admit(self, prompts: Sequence[Request], step: StepInProgress) -> None:
        """Let requests begin while there is room.

        Args:
            prompts: The running requests that lack more than one token, in the policy's order.
            step: Where they are added.
        """
        limits = PartialPrefills(self._settings, prompts, step)
        self._has_adapter_waiting = False
        index = 0
        for _ in range(MAX_LOOKED_AT):
            is_full = step.budget_left <= 0 or self._running.num_free_slots <= 0
            if index >= len(self._waiting) or is_full:
                return
            request = self._waiting[index]
            may_be_passed = self._begin(request, step, limits)
            if request.status is Status.WAITING:
                if not may_be_passed:
                    return
                index += 1

    def _begin(self, request: Request, step: StepInProgress, limits: PartialPrefills) -> bool:
        """Let the request begin, or stand aside; else whether those behind may go past it."""
        if request.num_tokens_on_their_way:
            return False
        if self._waits_for_adapter(request):
            return True
        look = self._fresh_look(request)
        if look is not None:  # then the prefix cache is not searched again to no purpose
            if not limits.share(request, self._num_lacking(request, look.num_hit_blocks), step):
                return limits.may_be_passed
            if self._lacks_blocks(request):
                return False
        hit = self._kv.find_prefix(request)
        if self._stands_aside(request, hit):
            return True
        return self._begin_behind(hit, request, step, limits)

    def _begin_behind(
        self,
        hit: PrefixHit | None,
        request: Request,
        step: StepInProgress,
        limits: PartialPrefills,
    ) -> bool:
        """Let the request begin behind a hit; if it cannot, note why, and as `_begin` returns."""
        num_hit_blocks = 0 if hit is None else hit.num_blocks
        needed = self._kv.needed_to_begin(request, hit)
        request.last_look = LastLook(self._num_steps, num_hit_blocks, needed)
        share = limits.share(request, self._num_lacking(request, num_hit_blocks), step)
        if not share:
            return limits.may_be_passed
        running = self._running.requests
        if self._lacks_blocks(request) or (running and not self._policy.admits(request, running)):
            return False
        if self._place(request, hit, share):
            self._num_spare_blocks -= needed + len(self._kv.specs)
            step.joined.append(request)
            step.add(request, share)
        return False

    def _waits_for_adapter(self, request: Request) -> bool:
        """Whether it waits for a place for its adapter, or behind one that does.

        Only requests without an adapter go past it: they take none of those places.
        """
        if request.adapter is not None and not self._has_adapter_waiting:
            self._has_adapter_waiting = not self._running.has_room_for(request.adapter)
        return request.adapter is not None and self._has_adapter_waiting

    def _fresh_look(self, request: Request) -> LastLook | None:
        """Return what was seen when it was last looked at, if that was not long ago."""
        look = request.last_look
        is_fresh = look is not None and self._num_steps - look.num_steps < LOOK_EVERY
        return look if is_fresh else None

    def _lacks_blocks(self, request: Request) -> bool:
        """Whether it would not fit, as far as is known. What nobody runs beside has to try."""
        look = request.last_look
        is_crowded = look is not None and look.num_needed_blocks > self._num_spare_blocks
        return is_crowded and bool(len(self._running))

    def _num_lacking(self, request: Request, num_hit_blocks: int) -> int:
        return len(request.token_ids) - num_hit_blocks * self._kv.block_size

    def _place(self, request: Request, hit: PrefixHit | None, share: int) -> bool:
        """Give a request blocks and a slot; False, and nothing changes, if the pool is short."""
        if hit is not None:
            self._kv.adopt(request, hit)
        num_hit_tokens = request.num_computed_tokens
        if self._kv.grow(request, num_hit_tokens + share) is None:
            self._kv.give_back(self._kv.release(request))
            request.num_computed_tokens = 0
            return False
        self._waiting.remove(request)
        request.last_look = None
        self._running.start(request)
        self._policy.began(request)
        if not self._kv.has_cache:
            return True
        if request.num_preemptions == 0 and request.reads_cache:
            request.num_cached_tokens = num_hit_tokens
            self.stats.record(request.num_prompt_tokens, num_hit_tokens)
        num_hit_blocks = num_hit_tokens // self._kv.block_size
        self._sharing.promise(request, self._kv.hashes_beyond(request, num_hit_blocks))
        return True

    def _stands_aside(self, request: Request, hit: PrefixHit | None) -> bool:
        """Whether what it lacks is computed by another request, or comes from a KV store."""
        if not (self._kv.has_cache and request.reads_cache):
            return False
        lacking = self._kv.hashes_beyond(request, 0 if hit is None else hit.num_blocks)
        status: Status | None = Status.WAITING_FOR_PREFIX
        if not self._sharing.follow(request, lacking):
            status = self._store.sets_aside(request, hit, len(self._running))
        if status is None:
            return False
        self._waiting.remove(request)
        request.status = status
        return True
