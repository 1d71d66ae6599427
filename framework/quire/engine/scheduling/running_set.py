"""The running requests: their slots, their adapters, and slots and blocks freed with a delay.

When a request is removed, its slot and blocks are free at once if no step is in flight. Otherwise
they are freed when the last step planned so far completes: until then the worker may use them.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, Tables
from quire.engine.request import Request, Status
from quire.engine.request_group import RequestGroup
from quire.engine.scheduling.waiting_queue import insert_into, remove_from
from quire.messages import AdapterRef


@dataclass(frozen=True, slots=True)
class _DeferredFree:
    """Slot and blocks of a removed request that a step in flight may still use."""

    plan_id: int  # the last such step
    slot: int
    tables: Tables
    num_blocks: int  # that will become free


class RunningSet:
    """Running requests, in the policy's order.

    Args:
        kv: Block tables of the requests.
        num_slots: Number of rows in the worker's tables.
        max_running: Maximum number of running requests.
        max_adapters: Maximum number of adapters among them.

    Attributes:
        requests: Running requests, in order.
        by_slot: Request that owns each slot, or owned it when a step in flight was planned.
        num_deferred_blocks: Number of blocks that become free when the steps in flight complete.
    """

    def __init__(
        self, kv: KVCacheManager, num_slots: int, max_running: int, max_adapters: int
    ) -> None:
        self.requests: list[Request] = []
        self.by_slot: list[Request | None] = [None] * num_slots
        self.num_deferred_blocks = 0
        self._kv = kv
        self._max_running = max_running
        self._max_adapters = max_adapters
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._adapters: Counter[AdapterRef] = Counter()
        self._deferred: deque[_DeferredFree] = deque()
        self._reserved: dict[RequestGroup, int] = {}  # slots for members that do not run yet

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_free_slots(self) -> int:
        """Number of requests that can still be added, beside the members of groups."""
        return self._num_free_slots - sum(self._reserved.values())

    @property
    def _num_free_slots(self) -> int:
        return min(len(self._free_slots), self._max_running - len(self.requests))

    def has_slot_for(self, request: Request) -> bool:
        """Whether a request can be added, and of a group that starts all its members."""
        group: RequestGroup | None = request.group
        if group in self._reserved:
            return self._num_free_slots > 0
        return self.num_free_slots >= (1 if group is None else group.width)

    @property
    def has_deferred(self) -> bool:
        """Whether slots or blocks of removed requests are not free yet."""
        return bool(self._deferred)

    def has_room_for(self, adapter: AdapterRef | None) -> bool:
        """Whether a request with this adapter can be added."""
        return (
            adapter is None or adapter in self._adapters or len(self._adapters) < self._max_adapters
        )

    def add(self, request: Request) -> None:
        """Add a request and assign it a slot."""
        request.status = Status.RUNNING
        if len(request.token_ids) == request.num_prompt_tokens:
            request.started_s = request.started_s or time.monotonic()
        request.slot = self._free_slots.pop()
        request.num_prompt_logprobs_seen = 0
        request.num_sent_tokens = len(request.token_ids)  # with the assignment of the slot
        self.by_slot[request.slot] = request
        insert_into(self.requests, request)
        if (group := request.group) is not None:
            self._reserved[group] = self._reserved.get(group, group.width) - 1
        if request.adapter is not None:
            self._adapters[request.adapter] += 1

    def remove(self, request: Request, plan_id: int | None) -> None:
        """Remove a request, and free its slot and blocks as soon as no step in flight uses them.

        Args:
            request: Running request; its status is left to the caller.
            plan_id: Id of the last step in flight; None: no step is in flight.
        """
        remove_from(self.requests, request)
        if (group := request.group) is not None:
            self._reserved[group] += 1
            if self._reserved[group] == group.width:
                del self._reserved[group]
        self._release_adapter(request.adapter)
        slot, request.slot = request.slot, None
        if slot is None:
            raise RuntimeError(f"request {request.request_id} runs without a slot")
        tables = self._kv.detach_tables(request)
        if plan_id is None:
            self._free(slot, tables)
            return
        deferred = _DeferredFree(plan_id, slot, tables, self._kv.num_freed_by(tables))
        self._deferred.append(deferred)
        self.num_deferred_blocks += deferred.num_blocks

    def complete_step(self, plan_id: int) -> None:
        """Free the slots and blocks that waited for this step to complete."""
        while self._deferred and self._deferred[0].plan_id <= plan_id:
            deferred = self._deferred.popleft()
            self.num_deferred_blocks -= deferred.num_blocks
            self._free(deferred.slot, deferred.tables)

    def _free(self, slot: int, tables: Tables) -> None:
        self._kv.free(tables)
        self.by_slot[slot] = None
        self._free_slots.append(slot)

    def _release_adapter(self, adapter: AdapterRef | None) -> None:
        if adapter is None:
            return
        self._adapters[adapter] -= 1
        if not self._adapters[adapter]:
            del self._adapters[adapter]
