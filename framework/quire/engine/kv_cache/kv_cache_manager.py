"""Block tables of the requests in each KV group, and the prefix lookup.

Tables only grow while a request runs, and the worker receives the added blocks only. One pool of
ids serves every group. A block that is full and computed is added to the prefix cache at once, so
that running requests share prefixes too, and the next turn of a conversation finds the completion.
A shared block is never written: a hit ends on a block boundary, strictly before the last known
token.

Where a spec needs less than the whole context, the unneeded blocks are freed while the request
runs, and the table contains the null block instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from quire.engine.kv_cache.cache_journal import CacheJournal
from quire.engine.request import Request
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan
from quire.messages import BlockCopy, MediaSpan

Tables = list[list[int]]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix of a request.

    Attributes:
        num_blocks: Length of the prefix, in blocks.
        block_ids: Blocks of each KV group; 0 where the spec needs none.
        num_unreferenced: Number of those blocks that have no owner at the moment.
    """

    num_blocks: int
    block_ids: Tables
    num_unreferenced: int


class KVCacheManager:
    """Allocates and frees the blocks of requests, and finds cached prefixes.

    Args:
        plan: Memory plan of the cache.
        enable_prefix_caching: Keep computed blocks for later requests while there is room.
        root: Identity of everything that all KV of this engine depends on; see `BlockHasher`.
        max_step_tokens: Maximum number of tokens of one request in a step.
        reports_events: Whether changes of the prefix cache are reported.
    """

    def __init__(
        self,
        plan: KVPlan,
        *,
        enable_prefix_caching: bool = True,
        root: bytes = b"",
        max_step_tokens: int = 2048,
        reports_events: bool = False,
    ) -> None:
        self.specs: Sequence[KVCacheSpec] = [group.spec for group in plan.groups]
        self.has_cache = enable_prefix_caching and bool(self.specs)
        self.block_size = self.specs[0].block_size if self.specs else max(1, plan.max_model_len)
        self.journal = CacheJournal(self.block_size) if reports_events else None
        self.pool = BlockPool(plan.num_blocks, len(self.specs), self.journal)
        self.max_step_tokens = max_step_tokens
        self._hasher = BlockHasher(self.block_size, root)
        self._last_prompt: tuple[list[int], tuple[MediaSpan, ...]] = ([], ())
        self._last_hashes: list[bytes] = []
        self._frees_early = [bool(spec.freeable_blocks(2**40)) for spec in self.specs]

    def prepare(self, request: Request) -> None:
        """Hash the full blocks of a new request's tokens; later blocks are hashed as they fill.

        The n completions of one prompt arrive one after the other and share its hashes.
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
        self._hash_blocks(request, len(request.token_ids) // self.block_size)
        self._last_prompt = (message.token_ids, message.media)
        self._last_hashes = list(request.hashes)

    # -- how much a request needs ----------------------------------------------------------------

    def blocks_to_finish(self, request: Request) -> int:
        """Return the maximum number of blocks that the request holds at the same time.

        The last generated token is never computed, so it needs no block.
        """
        tokens, step = request.last_computed, self.max_step_tokens
        held = [spec.max_blocks_held(tokens, step) for spec in self.specs]
        if request.message.companion is not None:
            tokens += len(request.message.companion.token_ids) - request.num_prompt_tokens
            held += [spec.max_blocks_held(tokens, step) for spec in self.specs]
        if request.message.beam_search is None:
            return sum(held)
        num_shared = request.num_prompt_tokens // self.block_size if self.has_cache else 0
        shared = [num_shared if spec.needs_whole_prefix else 0 for spec in self.specs]
        beam_width = request.message.beam_search.beam_width
        return sum(shared) + beam_width * (sum(held) - sum(shared))

    def can_ever_fit(self, request: Request) -> bool:
        """Whether the request can run to its end if it runs alone."""
        return self.blocks_to_finish(request) <= self.pool.num_usable

    def needed_to_begin(self, request: Request, hit: PrefixHit | None) -> int:
        """Return the number of free blocks needed for all known tokens after a prefix hit."""
        if hit is None:
            return self._needed_beside(request, [0] * len(self.specs))
        num_found = [sum(1 for block in table if block) for table in hit.block_ids]
        return hit.num_unreferenced + self._needed_beside(request, num_found)

    def num_still_needed(self, request: Request) -> int:
        """Return the number of blocks a running request still needs for all its known tokens."""
        tables = zip(request.block_ids, request.num_freed, strict=True)
        num_held = [len(table) - num_freed for table, num_freed in tables]
        return self._needed_beside(request, num_held)

    def _needed_beside(self, request: Request, num_held: Sequence[int]) -> int:
        """Return the number of blocks for all known tokens beside those held in each KV group."""
        num_tokens, step = len(request.token_ids), self.max_step_tokens
        return sum(
            max(0, spec.max_blocks_held(num_tokens, step) - held)
            for spec, held in zip(self.specs, num_held, strict=True)
        )

    def missing(self, request: Request, num_tokens: int) -> list[int]:
        """Return the number of blocks that each of its tables lacks for `num_tokens` tokens."""
        return [
            max(0, spec.blocks_needed(num_tokens) - len(table))
            for spec, table in zip(self.specs, request.block_ids, strict=True)
        ]

    # -- prefix lookup ---------------------------------------------------------------------------

    def find_prefix(self, request: Request) -> PrefixHit | None:
        """Return the longest cached prefix, in whole blocks before the last token."""
        if not (self.has_cache and request.reads_cache):
            return None
        num_blocks = (len(request.token_ids) - 1) // self.block_size
        self._hash_blocks(request, num_blocks)
        hashes = request.hashes[1 : 1 + num_blocks]
        length = self._usable_length(
            num_blocks, lambda group, length: self._cached_flags(group, hashes[:length])
        )
        if not length:
            return None
        tables = [self._hit_table(group, hashes[:length]) for group in range(len(self.specs))]
        return PrefixHit(length, tables, sum(map(self.pool.num_unreferenced, tables)))

    def attach_prefix(self, request: Request, hit: PrefixHit) -> None:
        """Start the request's tables with the blocks of a prefix hit."""
        for group, found in enumerate(hit.block_ids):
            self.pool.add_references(found)
            request.block_ids[group] += found
            request.num_freed[group] = found.count(NULL_BLOCK)
        request.num_computed_tokens = hit.num_blocks * self.block_size
        request.num_committed_blocks = hit.num_blocks
        self.set_next_check(request)

    def fork(self, source: Request, target: Request) -> None:
        """Replace the blocks of a request by those of another, whose computed tokens it has.

        They share the full ones, and the last one is copied; if no block is free for the copy, the
        tokens in it have to be computed again. No step in flight may use the target's blocks.
        """
        self.free(self.detach_tables(target))
        length = self._usable_length(
            source.num_computed_tokens // self.block_size,
            lambda group, length: [bool(block) for block in source.block_ids[group][:length]],
        )
        for group, table in enumerate(source.block_ids):
            unneeded = self.specs[group].freeable_blocks(length * self.block_size)
            shared = [
                NULL_BLOCK if index in unneeded else block
                for index, block in enumerate(table[:length])
            ]
            self.pool.add_references(shared)
            target.block_ids[group] = shared
            target.num_freed[group] = shared.count(NULL_BLOCK)
        target.hashes = source.hashes[: 1 + length]
        target.is_cacheable = source.is_cacheable
        target.num_committed_blocks = length
        target.num_computed_tokens = length * self.block_size
        target.block_copies = self._copies_of_last_block(source, length)
        for table, copy in zip(target.block_ids, target.block_copies, strict=False):
            table.append(copy.target)
            target.num_computed_tokens = source.num_computed_tokens
        self.set_next_check(target)

    def _copies_of_last_block(self, source: Request, num_full: int) -> list[BlockCopy]:
        """Return a copy for each group of the block after the full ones; none if it is not used."""
        num_left = source.num_computed_tokens - num_full * self.block_size
        is_held = all(len(table) > num_full and table[num_full] for table in source.block_ids)
        has_room = len(self.specs) <= self.pool.num_free
        if not (0 < num_left < self.block_size and is_held and has_room):
            return []
        targets = self.pool.allocate(len(self.specs))
        tables = zip(source.block_ids, targets, strict=True)
        return [BlockCopy(table[num_full], target) for table, target in tables]

    def is_cached(self, block_hash: bytes) -> bool:
        """Whether any KV group has a cached block with this hash."""
        return any(self.pool.find(group, block_hash) for group in range(len(self.specs)))

    def hashes_after(self, request: Request, num_blocks: int) -> list[bytes]:
        """Return the hashes of the blocks after a hit that a longer hit could cover."""
        return request.hashes[1 + num_blocks : 1 + (len(request.token_ids) - 1) // self.block_size]

    def _usable_length(self, length: int, flags: Callable[[int, int], Sequence[bool]]) -> int:
        """Return the length of the longest prefix that every group can use, in blocks.

        Args:
            length: Largest length.
            flags: Function of a group and a length that returns which of the first blocks it has.
        """
        is_stable = False
        while length and not is_stable:
            is_stable = True
            for group, spec in enumerate(self.specs):
                shorter = spec.cached_prefix(flags(group, length))
                is_stable = is_stable and shorter == length
                length = shorter
            is_stable = is_stable or len(self.specs) == 1
        return length

    def _cached_flags(self, group: int, hashes: Sequence[bytes]) -> list[bool]:
        find = self.pool.find
        if self.specs[group].needs_whole_prefix:  # blocks after a gap are useless
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

    # -- grow, commit and free -------------------------------------------------------------------

    def grow(self, request: Request, num_tokens: int) -> Tables | None:
        """Grow the request's tables to hold `num_tokens` tokens in all.

        Returns:
            The ids added to each group's table. None if the pool is short; nothing changes then.
        """
        missing = self.missing(request, num_tokens)
        if sum(missing) > self.pool.num_free:
            return None
        added = [self.pool.allocate(count) for count in missing]
        for table, ids in zip(request.block_ids, added, strict=True):
            table += ids
        self.set_next_check(request, num_tokens)
        return added

    def set_next_check(self, request: Request, num_tokens: int | None = None) -> None:
        """Set the number of computed tokens at which the table is full or the request ends."""
        total = request.num_computed_tokens if num_tokens is None else num_tokens
        room = -(-total // self.block_size) * self.block_size
        is_watched = bool(request.draft_token_ids or request.num_drafts_in_flight)
        is_watched |= request.group is not None
        request.next_check = 0 if is_watched else min(room, request.last_computed)

    def commit(self, request: Request, num_computed: int) -> range:
        """Commit the first `num_computed` tokens: add their full blocks to the prefix cache.

        Returns:
            The table indices of the blocks that have become full.
        """
        num_full = num_computed // self.block_size
        fresh = range(request.num_committed_blocks, num_full)
        if fresh and self.has_cache and request.is_cacheable:
            self._hash_blocks(request, num_full)
            for group, table in enumerate(request.block_ids):
                self._add_to_cache(request, group, table, fresh, num_computed)
        request.num_committed_blocks = max(num_full, request.num_committed_blocks)
        request.next_block_end = (num_full + 1) * self.block_size
        return fresh

    def add_to_cache(self, request: Request, group: int, index: int, block_id: int) -> None:
        """Add a computed or loaded block of a request to the prefix cache, unless it has one.

        Args:
            request: Request with the block's tokens and its hash.
            group: KV group of the block.
            index: Index of the block in the request's table.
            block_id: The block.
        """
        is_new = self.pool.add_to_cache(block_id, group, request.hashes[index + 1])
        if is_new and self.journal is not None:
            self.journal.note_stored(request, group, index)

    def free_unneeded(self, request: Request, num_computed: int) -> None:
        """Free the blocks that no token from `num_computed` on reads, where a spec allows it."""
        if request.message.beam_search is not None:  # a fork may compute its last block again
            num_computed -= num_computed % self.block_size
        for group, frees_early in enumerate(self._frees_early):
            if frees_early:
                unneeded = self.specs[group].freeable_blocks(num_computed)
                self._free(request, group, unneeded)

    def detach_tables(self, request: Request) -> Tables:
        """Return the request's tables, to be freed, and leave it with empty ones."""
        tables = request.block_ids
        request.block_ids = [[] for _ in tables]
        request.num_freed = [0] * len(tables)
        request.num_committed_blocks = request.next_block_end = request.next_check = 0
        return tables

    def free(self, tables: Tables) -> None:
        """Free the blocks of detached tables, the last position first."""
        for table in tables:
            self.pool.free(reversed(table))

    def num_freed_by(self, tables: Tables) -> int:
        """Return the number of blocks that would become free if these tables were freed."""
        references = self.pool.references
        return sum(1 for table in tables for block in table if block and references(block) == 1)

    def reset(self) -> None:
        """Clear the prefix cache; later requests find nothing computed until now."""
        self.pool.clear_cache()

    def _add_to_cache(
        self, request: Request, group: int, table: list[int], fresh: range, num_computed: int
    ) -> None:
        for index in self.specs[group].cacheable_blocks(fresh, num_computed):
            if table[index] != NULL_BLOCK:
                self.add_to_cache(request, group, index, table[index])

    def _free(self, request: Request, group: int, unneeded: range) -> None:
        table = request.block_ids[group]
        start = max(request.num_freed[group], unneeded.start)
        stop = min(unneeded.stop, len(table))
        if start >= stop:
            return
        self.pool.free(table[index] for index in reversed(range(start, stop)))
        table[start:stop] = [NULL_BLOCK] * (stop - start)
        request.num_freed[group] = stop

    def _hash_blocks(self, request: Request, num_blocks: int) -> None:
        if len(request.hashes) <= num_blocks:
            media = request.message.media
            self._hasher.extend(request.hashes, request.token_ids, num_blocks, media)
