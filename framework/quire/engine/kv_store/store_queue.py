"""Requests that wait for a KV store outside the waiting queue: for a lookup, or for a load.

The store is asked once per request and local hit; the result is cached for a short time, as the
request may have to wait for blocks. A pending lookup is retried with growing intervals, for a
limited number of requests per step, until the request has waited for the timeout.
"""

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_store.kv_transfers import MAX_LOADS, KVTransfers
from quire.engine.request import Request, Status

MAX_PENDING_LOOKUPS = 64  # lookups per step that return "pending"
MAX_RESULTS = 1024  # cached lookup results
RESULT_TTL_S = 1.0  # validity of a cached lookup result
MIN_RETRY_S = 0.001  # interval between two lookups of a request
MAX_RETRY_S = 0.05

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingLookup:
    """A lookup without a result so far."""

    num_hit_blocks: int
    start_s: float
    next_retry_s: float


@dataclass(frozen=True, slots=True)
class _LookupResult:
    """Number of stored blocks after a local hit."""

    num_hit_blocks: int
    num_blocks: int
    at_s: float
    num_resets: int  # of the store, at that time


class StoreQueue:
    """Requests with a pending lookup or load.

    Args:
        kv: Cache manager of the engine.
        transfers: Transfers of the KV store.
    """

    def __init__(self, kv: KVCacheManager, transfers: KVTransfers) -> None:
        self._kv = kv
        self._transfers = transfers
        self._pending_lookups: OrderedDict[Request, _PendingLookup] = OrderedDict()
        self._lookup_results: OrderedDict[Request, _LookupResult] = OrderedDict()
        self._num_pending = 0  # lookups that returned "pending" in this step
        self._has_warned = False

    @property
    def is_waiting(self) -> bool:
        """Whether a transfer or a lookup of the store is pending."""
        return self._transfers.is_busy or bool(self._pending_lookups)

    def try_defer(self, request: Request, hit: PrefixHit | None, num_running: int) -> Status | None:
        """Make a request wait for the store, if the store has or may have missing blocks.

        Args:
            request: Request that may wait; the caller removes it from the queue.
            hit: Its local prefix hit.
            num_running: Number of running requests; one block is reserved for each.

        Returns:
            The new status of the request; None: it goes on without the store.
        """
        num_hit_blocks = 0 if hit is None else hit.num_blocks
        num_blocks = self._num_stored(request, num_hit_blocks)
        if num_blocks is None:
            return Status.WAITING_FOR_KV_LOOKUP
        if not num_blocks or (num_running and self._cannot_start(request, hit, num_running)):
            return None
        if not self._transfers.load(request, hit, num_blocks, num_running):
            return None
        self._lookup_results.pop(request, None)
        return Status.WAITING_FOR_REMOTE_KV

    def pop_ready(self, now_s: float, num_in_flight: int = 0) -> list[Request]:
        """Return the requests to queue again; called once per step.

        Their lookup has a result or timed out, or their load timed out or was cancelled.

        Args:
            now_s: Current time, on the monotonic clock.
            num_in_flight: Number of planned steps that are not complete.
        """
        self._num_pending = 0
        return self._transfers.pop_expired(now_s, num_in_flight) + self._retry_lookups(now_s)

    def remove(self, request: Request) -> None:
        """Remove a finished request."""
        self._pending_lookups.pop(request, None)
        self._lookup_results.pop(request, None)
        self._transfers.remove(request)

    def _num_stored(self, request: Request, num_hit_blocks: int) -> int | None:
        """Return the number of blocks that the store has after a hit; None: lookup pending."""
        if not self._transfers.may_have(request, num_hit_blocks):
            return 0
        now_s = time.monotonic()
        result = self._lookup_results.get(request)
        if result is not None and self._is_fresh(result, num_hit_blocks, now_s):
            return result.num_blocks
        is_at_limit = self._num_pending >= MAX_PENDING_LOOKUPS
        num_blocks = None if is_at_limit else self._transfers.look_up(request, num_hit_blocks)
        if num_blocks is None:
            self._num_pending += 1
            self._pending_lookups[request] = _PendingLookup(
                num_hit_blocks, now_s, now_s + MIN_RETRY_S
            )
        else:
            self._cache_result(request, num_hit_blocks, num_blocks, now_s)
        return num_blocks

    def _cannot_start(self, request: Request, hit: PrefixHit | None, num_running: int) -> bool:
        """Whether the request does not fit beside the running ones, so a load would be evicted."""
        return self._kv.needed_to_begin(request, hit) + num_running > self._kv.pool.num_free

    def _retry_lookups(self, now_s: float) -> list[Request]:
        """Retry some pending lookups in turn, and return the requests that need no retry."""
        ready = []
        for request, lookup in list(islice(self._pending_lookups.items(), MAX_PENDING_LOOKUPS)):
            if lookup.next_retry_s <= now_s and self._retry_lookup(request, lookup, now_s):
                del self._pending_lookups[request]
                ready.append(request)
            else:
                self._pending_lookups.move_to_end(request)
        return ready

    def _retry_lookup(self, request: Request, lookup: _PendingLookup, now_s: float) -> bool:
        """Retry a lookup; return whether it has a result or has timed out."""
        num_blocks = self._transfers.look_up(request, lookup.num_hit_blocks)
        if num_blocks is not None:
            self._cache_result(request, lookup.num_hit_blocks, num_blocks, now_s)
            return True
        self._num_pending += 1
        waited_s = now_s - lookup.start_s
        lookup.next_retry_s = now_s + min(max(waited_s / 4, MIN_RETRY_S), MAX_RETRY_S)
        if waited_s < self._transfers.timeout_s:
            return False
        self._give_up(request)
        return True

    def _give_up(self, request: Request) -> None:
        request.num_loads = MAX_LOADS
        logger.log(
            logging.DEBUG if self._has_warned else logging.WARNING,
            "a lookup in %s had no result within %g s; computing the prefix instead",
            self._transfers.store.name, self._transfers.timeout_s,
        )  # fmt: skip
        self._has_warned = True

    def _is_fresh(self, result: _LookupResult, num_hit_blocks: int, now_s: float) -> bool:
        is_same_hit = result.num_hit_blocks == num_hit_blocks
        is_after_reset = result.num_resets == self._transfers.num_resets
        return is_same_hit and is_after_reset and now_s - result.at_s < RESULT_TTL_S

    def _cache_result(
        self, request: Request, num_hit_blocks: int, num_blocks: int, now_s: float
    ) -> None:
        self._lookup_results[request] = _LookupResult(
            num_hit_blocks, num_blocks, now_s, self._transfers.num_resets
        )
        self._lookup_results.move_to_end(request)
        if len(self._lookup_results) > MAX_RESULTS:
            self._lookup_results.popitem(last=False)
