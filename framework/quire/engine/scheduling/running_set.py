"""The requests that run: their slots, their adapters, and what those who left still hold.

A slot and the blocks of a request that leaves are free at once, or when the last step that was
planned before has landed: until then the worker may read and write them.
"""

from collections import Counter, deque
from dataclasses import dataclass

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, Tables
from quire.engine.request import Request, Status
from quire.engine.scheduling.waiting_queue import insert_into, remove_from
from quire.messages import AdapterRef


@dataclass(frozen=True, slots=True)
class _Leaving:
    """What a request left behind that a step in flight may still use."""

    plan_id: int  # the last step that may
    slot: int
    tables: Tables
    num_blocks: int  # that will be free


class RunningSet:
    """Who runs, in the policy's order.

    Args:
        kv: Who owns which blocks.
        num_slots: Rows in the worker's tables.
        max_running: Requests that run at the same time.
        max_adapters: Adapters among them.

    Attributes:
        by_slot: The request that owns each slot, or owned it when a step in flight was planned.
        num_leaving_blocks: Blocks that are free as soon as what is in flight has landed.
    """

    def __init__(
        self, kv: KVCacheManager, num_slots: int, max_running: int, max_adapters: int
    ) -> None:
        self.requests: list[Request] = []
        self.by_slot: list[Request | None] = [None] * num_slots
        self.num_leaving_blocks = 0
        self._kv = kv
        self._max_running = max_running
        self._max_adapters = max_adapters
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._adapters: Counter[AdapterRef] = Counter()
        self._leaving: deque[_Leaving] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_free_slots(self) -> int:
        """How many more may begin."""
        return min(len(self._free_slots), self._max_running - len(self.requests))

    @property
    def has_leaving(self) -> bool:
        """Whether somebody who left still holds something."""
        return bool(self._leaving)

    def has_room_for(self, adapter: AdapterRef | None) -> bool:
        """Whether a request with this adapter may begin."""
        return (
            adapter is None or adapter in self._adapters or len(self._adapters) < self._max_adapters
        )

    def start(self, request: Request) -> None:
        """Give a request a slot."""
        request.status = Status.RUNNING
        request.slot = self._free_slots.pop()
        request.num_prompt_logprobs_seen = 0
        self.by_slot[request.slot] = request
        insert_into(self.requests, request)
        if request.adapter is not None:
            self._adapters[request.adapter] += 1

    def leave(self, request: Request, plan_id: int | None) -> None:
        """Take a request's slot and blocks from it.

        Args:
            request: Who leaves; its status is the caller's business.
            plan_id: The last step in flight; None: there is none.
        """
        remove_from(self.requests, request)
        self._count_adapter_out(request.adapter)
        slot, request.slot = request.slot, None
        if slot is None:
            raise RuntimeError(f"request {request.request_id} runs without a slot")
        tables = self._kv.release(request)
        if plan_id is None:
            self._free(slot, tables)
            return
        leaving = _Leaving(plan_id, slot, tables, self._kv.num_to_come(tables))
        self._leaving.append(leaving)
        self.num_leaving_blocks += leaving.num_blocks

    def land(self, plan_id: int) -> None:
        """Free what waited for a step that has landed now."""
        while self._leaving and self._leaving[0].plan_id <= plan_id:
            leaving = self._leaving.popleft()
            self.num_leaving_blocks -= leaving.num_blocks
            self._free(leaving.slot, leaving.tables)

    def _free(self, slot: int, tables: Tables) -> None:
        self._kv.give_back(tables)
        self.by_slot[slot] = None
        self._free_slots.append(slot)

    def _count_adapter_out(self, adapter: AdapterRef | None) -> None:
        if adapter is None:
            return
        self._adapters[adapter] -= 1
        if not self._adapters[adapter]:
            del self._adapters[adapter]
