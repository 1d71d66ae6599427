"""The pool of KV blocks: allocation, reference counts, caching and eviction, in O(1) per block.

Every block but the null block is in exactly one of three states:

    blank     no owner, and no cached content
    cached    no owner, but a prefix hit can find it; evicted when no block is blank, the least
              recently used first and, among equals, the last of a sequence first
    used      as many owners as its reference count; a prefix hit may find it too

    num_blank + num_cached + num_used = num_usable, always

Block 0 is the null block: padding writes there, tables contain it where a block is not needed (any
more), and it is never counted, owned or found.
"""

from collections import OrderedDict
from collections.abc import Iterable

from quire.engine.kv_cache.cache_journal import CacheJournal

NULL_BLOCK = 0


class BlockPool:
    """KV blocks by id, and the cached contents by hash.

    Args:
        num_blocks: Number of blocks in the pool, the null block included.
        num_groups: Number of KV groups; contents are cached separately for each group.
        journal: Journal of the cached contents; None: changes are not reported.
    """

    def __init__(
        self, num_blocks: int, num_groups: int = 1, journal: CacheJournal | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.journal = journal
        self.num_evictions = 0
        self._references = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))  # a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._content: dict[int, tuple[int, bytes]] = {}  # block -> group and hash

    @property
    def num_usable(self) -> int:
        """Number of blocks that requests can own: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_blank(self) -> int:
        """Number of blocks without owner and content."""
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        """Number of blocks without owner that a prefix hit can find."""
        return len(self._cached)

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated now."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Number of blocks with an owner."""
        return self.num_usable - self.num_free

    def references(self, block_id: int) -> int:
        """Return the reference count of a block."""
        return self._references[block_id]

    def content(self, block_id: int) -> tuple[int, bytes] | None:
        """Return the KV group and hash under which a block is cached; None: it is not."""
        return self._content.get(block_id)

    def sample_codes(self, stride: int, *, free: int, used: int) -> list[int]:
        """Return for every `stride`-th block the number `free` or `used`, plus 1 if cached."""
        content = self._content
        codes = [used if references else free for references in self._references[::stride]]
        if stride == 1:
            for block_id in content:
                codes[block_id] += 1
            return codes
        for cell, block_id in enumerate(range(0, self.num_blocks, stride)):
            if block_id in content:
                codes[cell] += 1
        return codes

    def find(self, group: int, block_hash: bytes) -> int | None:
        """Return the block that holds a content; None: there is none."""
        return self._block_of[group].get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks: blank ones first, then the least recently used cached ones.

        Raises:
            IndexError: Fewer blocks are free; the caller must check `num_free` first.
        """
        if count > self.num_free:
            raise IndexError(f"{count} KV blocks are requested and {self.num_free} are free")
        allocated = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block_id in allocated:
            self._references[block_id] = 1
        return allocated

    def add_references(self, block_ids: Iterable[int]) -> None:
        """Add an owner to used or cached blocks."""
        references = self._references
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            if references[block_id] == 0:
                del self._cached[block_id]
            references[block_id] += 1

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """Return the number of these blocks that are cached and have no owner."""
        return sum(1 for block_id in block_ids if block_id and not self._references[block_id])

    def free(self, block_ids: Iterable[int]) -> None:
        """Remove one owner of each block.

        Args:
            block_ids: Blocks, the last position first, so that prefixes stay cached the longest.

        Raises:
            RuntimeError: One of the blocks has no owner.
        """
        references = self._references
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            count = references[block_id] - 1
            if count < 0:
                raise RuntimeError(f"KV block {block_id} is freed and has no owner")
            references[block_id] = count
            if count:
                continue
            if block_id in self._content:
                self._cached[block_id] = None
            else:
                self._blank.append(block_id)

    def add_to_cache(self, block_id: int, group: int, block_hash: bytes) -> bool:
        """Cache an owned block for prefix hits; of equal contents only the first is cached.

        Returns:
            Whether it was cached. The caller then notes it in the journal, if there is one.
        """
        block_of = self._block_of[group]
        if block_hash in block_of or block_id in self._content:
            return False
        block_of[block_hash] = block_id
        self._content[block_id] = (group, block_hash)
        return True

    def clear_cache(self) -> None:
        """Remove all contents from the cache; used blocks keep their owners."""
        for block_of in self._block_of:
            block_of.clear()
        self._content.clear()
        self._blank += reversed(self._cached)
        self._cached.clear()
        if self.journal is not None:
            self.journal.note_cleared()

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        group, block_hash = self._content.pop(block_id)
        del self._block_of[group][block_hash]
        self.num_evictions += 1
        if self.journal is not None:
            self.journal.note_removed(group, block_hash)
        return block_id
