"""Block tables: which KV blocks each request owns in each KV group, and which it finds computed.

Tables only grow while a request runs; what is added goes to the worker as a difference. One pool of
ids serves every group. A block that is full and computed is offered to the prefix cache at once, so
that equal beginnings meet also among requests that run, and answers are found by the next turn of a
conversation. No block that others may own is ever written: a hit ends strictly before the last
known token, and on a block's end.

Where a spec needs less than the whole context, the table names the null block instead, and what it
named before goes back to the pool while the request still runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from quire.engine.request import Request
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan
from quire.messages import MediaSpan

Tables = list[list[int]]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A beginning of a request that is computed already.

    Attributes:
        num_blocks: How long it is.
        block_ids: In each KV group, the blocks; 0 where the spec needs none.
        num_to_revive: How many of them nobody owns at the moment.
    """

    num_blocks: int
    block_ids: Tables
    num_to_revive: int


class KVCacheManager:
    """Give requests their blocks, find what is computed, and take blocks back.

    Args:
        plan: The memory of the cache.
        enable_prefix_caching: Keep what was computed while there is room.
        root: What all KV of this engine depends on; see `BlockHasher`.
        max_step_tokens: Tokens of one request that a step computes, at most.
    """

    def __init__(
        self,
        plan: KVPlan,
        *,
        enable_prefix_caching: bool = True,
        root: bytes = b"",
        max_step_tokens: int = 2048,
    ) -> None:
        self.specs: Sequence[KVCacheSpec] = [group.spec for group in plan.groups]
        self.has_cache = enable_prefix_caching and bool(self.specs)
        self.block_size = self.specs[0].block_size if self.specs else max(1, plan.max_model_len)
        self.pool = BlockPool(plan.num_blocks, len(self.specs))
        self.max_step_tokens = max_step_tokens
        self._hasher = BlockHasher(self.block_size, root)
        self._last_prompt: tuple[list[int], tuple[MediaSpan, ...]] = ([], ())
        self._last_hashes: list[bytes] = []
        self._frees_early = [bool(spec.freeable_blocks(2**40)) for spec in self.specs]

    def prepare(self, request: Request) -> None:
        """Name the full blocks of a request's tokens, once; later ones as they fill.

        The n answers to one prompt come one after the other, and share its names.
        """
        if not self.has_cache:
            return
        request.hashes = [self._hasher.start(request.message)]
        message, hashes = request.message, self._last_hashes
        is_same_prompt = hashes[:1] == request.hashes and self._last_prompt == (
            message.token_ids, message.media,
        )  # fmt: skip
        if is_same_prompt:
            request.hashes = list(hashes)
            return
        self._name_blocks(request, len(request.token_ids) // self.block_size)
        self._last_prompt = (message.token_ids, message.media)
        self._last_hashes = list(request.hashes)

    # -- how much a request needs ----------------------------------------------------------------

    def blocks_to_finish(self, request: Request) -> int:
        """Return how many blocks the request holds at the same time, at most.

        The last token of an answer is never computed, so it needs no room.
        """
        tokens, step = request.last_computed, self.max_step_tokens
        return sum(spec.max_blocks_held(tokens, step) for spec in self.specs)

    def can_ever_fit(self, request: Request) -> bool:
        """Whether the request could run to its end, alone."""
        return self.blocks_to_finish(request) <= self.pool.num_usable

    def needed_to_begin(self, request: Request, hit: PrefixHit | None) -> int:
        """Return how many free blocks a request takes to hold all its known tokens behind a hit."""
        needed = 0 if hit is None else hit.num_to_revive
        for group, spec in enumerate(self.specs):
            held = spec.max_blocks_held(len(request.token_ids), self.max_step_tokens)
            found = 0 if hit is None else sum(1 for block in hit.block_ids[group] if block)
            needed += max(0, held - found)
        return needed

    def still_to_take(self, request: Request) -> int:
        """Return how many more blocks a running request takes to hold all its known tokens."""
        return sum(
            max(0, spec.max_blocks_held(len(request.token_ids), self.max_step_tokens) - held)
            for spec, held in zip(self.specs, self._num_held(request), strict=True)
        )

    def _num_held(self, request: Request) -> list[int]:
        """Return how many blocks it owns in each group: those of its table that were not freed."""
        tables = zip(request.block_ids, request.num_freed, strict=True)
        return [len(table) - num_freed for table, num_freed in tables]

    def missing(self, request: Request, num_tokens: int) -> int:
        """Return how many blocks its tables lack to hold so many tokens."""
        return sum(
            max(0, spec.blocks_needed(num_tokens) - len(table))
            for spec, table in zip(self.specs, request.block_ids, strict=True)
        )

    # -- what is computed already ----------------------------------------------------------------

    def find_prefix(self, request: Request) -> PrefixHit | None:
        """Return the longest beginning that is computed, in whole blocks before the last token."""
        if not (self.has_cache and request.reads_cache):
            return None
        num_blocks = (len(request.token_ids) - 1) // self.block_size
        self._name_blocks(request, num_blocks)
        hashes = request.hashes[1 : 1 + num_blocks]
        length = self._hit_length(hashes)
        if not length:
            return None
        tables = [self._hit_table(group, hashes[:length]) for group in range(len(self.specs))]
        return PrefixHit(length, tables, sum(map(self.pool.num_to_revive, tables)))

    def adopt(self, request: Request, hit: PrefixHit) -> None:
        """Begin the request's tables with what was found."""
        for group, found in enumerate(hit.block_ids):
            self.pool.share(found)
            request.block_ids[group] += found
            request.num_freed[group] = found.count(NULL_BLOCK)
        request.num_computed_tokens = hit.num_blocks * self.block_size
        request.num_committed_blocks = hit.num_blocks
        self.set_next_check(request)

    def is_found(self, block_hash: bytes) -> bool:
        """Whether some KV group has a block of this content."""
        return any(self.pool.find(group, block_hash) for group in range(len(self.specs)))

    def hashes_beyond(self, request: Request, num_blocks: int) -> list[bytes]:
        """Return the names of the blocks behind a hit that another one could still spare it."""
        return request.hashes[1 + num_blocks : 1 + (len(request.token_ids) - 1) // self.block_size]

    def _hit_length(self, hashes: Sequence[bytes]) -> int:
        """Return how far every group has what it needs, in blocks."""
        length = len(hashes)
        is_settled = False
        while length and not is_settled:
            is_settled = True
            for group, spec in enumerate(self.specs):
                shorter = spec.cached_prefix(self._are_found(group, hashes[:length]))
                is_settled = is_settled and shorter == length
                length = shorter
            is_settled = is_settled or len(self.specs) == 1
        return length

    def _are_found(self, group: int, hashes: Sequence[bytes]) -> list[bool]:
        find = self.pool.find
        if self.specs[group].needs_whole_prefix:  # then nothing behind a gap matters
            found = []
            for block_hash in hashes:
                found.append(find(group, block_hash) is not None)
                if not found[-1]:
                    break
            return found
        return [find(group, block_hash) is not None for block_hash in hashes]

    def _hit_table(self, group: int, hashes: Sequence[bytes]) -> list[int]:
        unneeded = self.specs[group].freeable_blocks(len(hashes) * self.block_size)
        find = self.pool.find
        return [
            NULL_BLOCK if index in unneeded else find(group, block_hash) or NULL_BLOCK
            for index, block_hash in enumerate(hashes)
        ]

    # -- while it runs ---------------------------------------------------------------------------

    def grow(self, request: Request, num_tokens: int) -> Tables | None:
        """Give the request blocks for so many tokens in all.

        Returns:
            The ids added to each group's table, or None, and then nothing changes, if the pool is
            short.
        """
        missing = [
            max(0, spec.blocks_needed(num_tokens) - len(table))
            for spec, table in zip(self.specs, request.block_ids, strict=True)
        ]
        if sum(missing) > self.pool.num_free:
            return None
        added = [self.pool.take(count) for count in missing]
        for table, ids in zip(request.block_ids, added, strict=True):
            table += ids
        self.set_next_check(request, num_tokens)
        return added

    def set_next_check(self, request: Request, num_tokens: int | None = None) -> None:
        """Note up to where the request may compute before its tables must grow, or it must end."""
        total = request.num_computed_tokens if num_tokens is None else num_tokens
        room = -(-total // self.block_size) * self.block_size
        has_drafts = bool(request.draft_token_ids or request.num_drafts_in_flight)
        request.checkpoint = 0 if has_drafts else min(room, request.last_computed)

    def commit(self, request: Request, num_computed: int) -> range:
        """Take note that the first `num_computed` tokens are computed for certain.

        Full blocks are offered to the prefix cache; those that no later token reads go back.

        Returns:
            The table indices of the blocks that have become full.
        """
        num_full = num_computed // self.block_size
        fresh = range(request.num_committed_blocks, num_full)
        if fresh and self.has_cache and request.is_cacheable:
            self._name_blocks(request, num_full)
            for group, table in enumerate(request.block_ids):
                self._keep(request, group, table, fresh, num_computed)
        request.num_committed_blocks = max(num_full, request.num_committed_blocks)
        request.next_block_end = (num_full + 1) * self.block_size
        return fresh

    def free_unneeded(self, request: Request, num_computed: int) -> None:
        """Take back what no token from `num_computed` on reads, if a spec lets go of blocks."""
        for group, frees_early in enumerate(self._frees_early):
            if frees_early:
                unneeded = self.specs[group].freeable_blocks(num_computed)
                self._free(request, group, unneeded)

    def release(self, request: Request) -> Tables:
        """Take the request's tables from it, to be given back; they are empty then."""
        tables = request.block_ids
        request.block_ids = [[] for _ in tables]
        request.num_freed = [0] * len(tables)
        request.num_committed_blocks = request.next_block_end = request.checkpoint = 0
        return tables

    def give_back(self, tables: Tables) -> None:
        """Return the blocks of tables to the pool, the end first."""
        for table in tables:
            self.pool.give_back(reversed(table))

    def num_to_come(self, tables: Tables) -> int:
        """Return how many blocks would be free if these tables were given back."""
        references = self.pool.references
        return sum(1 for table in tables for block in table if block and references(block) == 1)

    def reset(self) -> None:
        """Forget every content; no later request finds what was computed until now."""
        self.pool.forget_all()

    def _keep(
        self, request: Request, group: int, table: list[int], fresh: range, num_computed: int
    ) -> None:
        for index in self.specs[group].cacheable_blocks(fresh, num_computed):
            if table[index] != NULL_BLOCK:
                self.pool.keep(table[index], group, request.hashes[index + 1])

    def _free(self, request: Request, group: int, unneeded: range) -> None:
        table = request.block_ids[group]
        start = max(request.num_freed[group], unneeded.start)
        stop = min(unneeded.stop, len(table))
        if start >= stop:
            return
        self.pool.give_back(table[index] for index in reversed(range(start, stop)))
        table[start:stop] = [NULL_BLOCK] * (stop - start)
        request.num_freed[group] = stop

    def _name_blocks(self, request: Request, num_blocks: int) -> None:
        if len(request.hashes) <= num_blocks:
            media = request.message.media
            self._hasher.extend(request.hashes, request.token_ids, num_blocks, media)
