"""Who of those that wait may begin, with how much, and who stands aside for now.

Strictly in the policy's order: the first that does not fit stops all behind it, so that nobody can
starve it. Past a request go only those for whom standing aside costs nothing: it waits for blocks
that another request computes at the moment or that a KV store brings, or it is a long prompt and
too many of those are being computed already.
"""

import time
from collections.abc import Sequence

from quire.config import SchedulerSettings
from quire.engine.kv_cache import KVCacheManager, PrefixHit
from quire.engine.kv_transfers import KVTransfers
from quire.engine.partial_prefills import PartialPrefills
from quire.engine.prefix_stats import PrefixStats
from quire.engine.prompt_sharing import PromptSharing
from quire.engine.request import Request, Status
from quire.engine.running_set import RunningSet
from quire.engine.step_in_progress import StepInProgress
from quire.engine.waiting_queue import WaitingQueue
from quire.interfaces.scheduling import SchedulingPolicy

MAX_PASSED = 64  # requests that a step looks at behind one that must wait


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
        transfers: KVTransfers | None,
    ) -> None:
        self.asking: list[Request] = []  # a KV store what it has
        self.stats = PrefixStats()
        self._settings = settings
        self._kv = kv
        self._policy = policy
        self._waiting = waiting
        self._running = running
        self._sharing = sharing
        self._transfers = transfers

    def call_back(self) -> None:
        """Queue those again that asked a KV store, or whose load will not come."""
        back, self.asking = self.asking, []
        if self._transfers is not None and (self._transfers.is_busy or back):
            back += self._transfers.late(time.monotonic())
        for request in back:
            request.status = Status.WAITING
            self._waiting.push(request)

    def demand(self, step: StepInProgress) -> int:
        """Return how many tokens to keep for requests that could begin now: half, at most."""
        most, demand = step.budget_left // 2, 0
        for index in range(min(self._running.num_free_slots, len(self._waiting))):
            demand += self._waiting[index].num_pending_tokens
            if demand >= most:
                return most
        return demand

    def admit(self, prompts: Sequence[Request], step: StepInProgress) -> None:
        """Let requests begin while there is room.

        Args:
            prompts: The running requests that lack more than one token.
            step: Where they are added.
        """
        limits = PartialPrefills(self._settings, prompts, step)
        index = 0
        while index < min(len(self._waiting), MAX_PASSED):
            if step.budget_left <= 0 or self._running.num_free_slots <= 0:
                return
            request = self._waiting[index]
            may_be_passed = self._begin(request, step, limits)
            if request.status is Status.WAITING:
                if not may_be_passed:
                    return
                index += 1

    def _begin(self, request: Request, step: StepInProgress, limits: PartialPrefills) -> bool:
        """Let the request begin, or stand aside; else whether those behind may go past it."""
        if request.num_tokens_on_their_way or not self._may_begin(request):
            return False
        hit = self._kv.find_prefix(request)
        num_hit_blocks = 0 if hit is None else hit.num_blocks
        if self._stands_aside(request, num_hit_blocks):
            return True
        pending = len(request.token_ids) - num_hit_blocks * self._kv.block_size
        share = limits.share(pending, step)
        if share <= 0:
            return limits.may_be_passed(pending)
        reserved = self._num_reserved(step)
        if len(self._running) and not self._kv.has_room_for(request, hit, reserved):
            return False
        if self._place(request, hit, share):
            limits.count(pending, share)
            step.joined.append(request)
            step.add(request, share)
        return False

    def _may_begin(self, request: Request) -> bool:
        running = self._running.requests
        if running and not self._policy.admits(request, running):
            return False
        return self._running.has_room_for(request.adapter)

    def _num_reserved(self, step: StepInProgress) -> int:
        """Return the blocks that running requests need soon: their prompts', and one for each."""
        prompts = sum(
            self._kv.missing(request, len(request.token_ids))
            for request in step.chunks
            if request.num_pending_tokens > 1
        )
        return prompts + len(self._kv.specs) * len(self._running)

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
        self._running.start(request)
        if not self._kv.has_cache:
            return True
        if request.num_preemptions == 0 and request.reads_cache:
            request.num_cached_tokens = num_hit_tokens
            self.stats.record(request.num_prompt_tokens, num_hit_tokens)
        num_hit_blocks = num_hit_tokens // self._kv.block_size
        self._sharing.promise(request, self._kv.hashes_beyond(request, num_hit_blocks))
        return True

    # -- stand aside -----------------------------------------------------------------------------

    def _stands_aside(self, request: Request, num_hit_blocks: int) -> bool:
        """Whether what it lacks is computed by another request, or comes from a KV store."""
        if not (self._kv.has_cache and request.reads_cache):
            return False
        if self._sharing.follow(request, self._kv.hashes_beyond(request, num_hit_blocks)):
            self._set_aside(request, Status.FOLLOWING)
            return True
        return self._transfers is not None and self._loads(request, num_hit_blocks, self._transfers)

    def _loads(self, request: Request, num_hit_blocks: int, transfers: KVTransfers) -> bool:
        num_stored = transfers.look_up(request, num_hit_blocks)
        if num_stored is None:
            return self._ask_again(request)
        needed = num_stored * len(self._kv.specs)
        if not num_stored or needed + len(self._running) > self._kv.pool.num_free:
            return False
        if not transfers.load(request, num_hit_blocks, num_stored, time.monotonic()):
            return self._ask_again(request)  # the blocks of the hit may be gone for the load's
        self._set_aside(request, Status.LOADING)
        return True

    def _ask_again(self, request: Request) -> bool:
        self._set_aside(request, Status.ASKING)
        self.asking.append(request)
        return True

    def _set_aside(self, request: Request, status: Status) -> None:
        self._waiting.remove(request)
        request.status = status
