"""The pool of KV blocks: handed out, shared, kept for reuse and taken back, each in constant time.

Every block but the null block is in exactly one of three states:

    blank     nobody owns it, and nothing in it is worth keeping
    cached    nobody owns it, but a prefix hit would find it; given away when no block is blank,
              least recently used first and, among equals, the end of a sequence first
    used      owned, by as many as its reference count says; a prefix hit may find it too

    num_blank + num_cached + num_used = num_usable, always

Block 0 is the null block: padding writes there, tables name it where a block is not needed (any
more), and it is never counted, owned or found.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NULL_BLOCK = 0


class BlockPool:
    """KV blocks by id, and the contents that can be found again.

    Args:
        num_blocks: Blocks in the pool, the null block included.
        num_groups: KV groups; a content is kept for each group by itself.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._references = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))  # a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._found: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._content: dict[int, tuple[int, bytes]] = {}  # block -> group and hash

    @property
    def num_usable(self) -> int:
        """Blocks that requests can own: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_blank(self) -> int:
        """Blocks that nobody owns and that hold nothing."""
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody owns and a prefix hit would find."""
        return len(self._cached)

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that somebody owns."""
        return self.num_usable - self.num_free

    def references(self, block_id: int) -> int:
        """Return how many own a block."""
        return self._references[block_id]

    def content(self, block_id: int) -> tuple[int, bytes] | None:
        """Return the KV group and hash under which a block can be found, if it can."""
        return self._content.get(block_id)

    def find(self, group: int, block_hash: bytes) -> int | None:
        """Return the block with a content."""
        return self._found[group].get(block_hash)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks; blank ones first, then the cached ones that were used last long ago.

        Raises:
            IndexError: There are fewer free; the caller is to look at `num_free` first.
        """
        if count > self.num_free:
            raise IndexError(f"{count} KV blocks are wanted and {self.num_free} are free")
        taken = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Let somebody else own blocks too, used or cached ones."""
        references = self._references
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            if references[block_id] == 0:
                del self._cached[block_id]
            references[block_id] += 1

    def num_to_revive(self, block_ids: Iterable[int]) -> int:
        """Return how many of these blocks are cached and owned by nobody."""
        return sum(1 for block_id in block_ids if block_id and not self._references[block_id])

    def give_back(self, block_ids: Iterable[int]) -> None:
        """End one ownership of each block, the last position first: prefixes stay the longest.

        Raises:
            RuntimeError: Nobody owns one of them.
        """
        references = self._references
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            count = references[block_id] - 1
            if count < 0:
                raise RuntimeError(f"KV block {block_id} is given back and nobody owns it")
            references[block_id] = count
            if count:
                continue
            if block_id in self._content:
                self._cached[block_id] = None
            else:
                self._blank.append(block_id)

    def keep(self, block_id: int, group: int, block_hash: bytes) -> None:
        """Let prefix hits find an owned block; the first block of a content is the one found."""
        found = self._found[group]
        if block_hash in found or block_id in self._content:
            return
        found[block_hash] = block_id
        self._content[block_id] = (group, block_hash)

    def forget_all(self) -> None:
        """Let no block be found any more; used blocks stay with their owners."""
        for found in self._found:
            found.clear()
        self._content.clear()
        self._blank += reversed(self._cached)
        self._cached.clear()

    def cached_blocks(self) -> Sequence[int]:
        """Return the blocks that nobody owns and that can be found, the next to go first."""
        return list(self._cached)

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        group, block_hash = self._content.pop(block_id)
        del self._found[group][block_hash]
        self.num_evictions += 1
        return block_id
