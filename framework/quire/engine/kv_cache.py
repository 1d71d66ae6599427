"""Block tables: which KV blocks each request owns, per KV group.

Tables only grow while a request runs; what is added goes to the worker as a difference. One pool of
ids serves every group.
"""

from collections.abc import Sequence

from quire.engine.block_pool import BlockPool
from quire.engine.request import Request
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan


class KVCacheManager:
    """Give requests their blocks, and take them back."""

    def __init__(self, plan: KVPlan) -> None:
        self.specs: Sequence[KVCacheSpec] = [group.spec for group in plan.groups]
        self.pool = BlockPool(plan.num_blocks)

    def blocks_to_finish(self, request: Request) -> int:
        """Return how many blocks the request holds at its longest.

        The last token of an answer is never computed, so it needs no room.
        """
        longest = request.max_total_tokens - 1
        return sum(spec.blocks_needed(longest) for spec in self.specs)

    def can_ever_fit(self, request: Request) -> bool:
        """Whether the request could run to its end, alone."""
        return self.blocks_to_finish(request) <= self.pool.num_usable

    def has_room_for(self, request: Request, num_others: int) -> bool:
        """Whether all known tokens of a request fit, and leave a block for each of some others.

        Admitting more would only mean to preempt, and compute again, what was admitted.
        """
        needed = sum(spec.blocks_needed(len(request.token_ids)) for spec in self.specs)
        return needed + num_others <= self.pool.num_free

    def grow(self, request: Request, num_new_tokens: int) -> list[list[int]] | None:
        """Give the request blocks for its computed and `num_new_tokens` further tokens.

        Returns:
            The ids added to each group's table (an empty list if none needs any), or None, and
            then nothing changes, if the pool is short.
        """
        total = request.num_computed_tokens + num_new_tokens
        missing = [
            spec.blocks_needed(total) - len(table)
            for spec, table in zip(self.specs, request.block_ids, strict=True)
        ]
        if max(missing) <= 0:  # the usual decode step: there is room in the last block
            return []
        missing = [max(0, count) for count in missing]
        if sum(missing) > self.pool.num_free:
            return None
        added = [self.pool.take(count) for count in missing]
        for table, ids in zip(request.block_ids, added, strict=True):
            table += ids
        return added

    def release(self, request: Request) -> None:
        """Take back every block of the request."""
        for table in request.block_ids:
            self.pool.give_back(reversed(table))
            table.clear()
