"""The pool of KV blocks: ids, handed out and taken back in constant time.

block 0 is the null block: padding writes there, and no request ever owns it
free + used = num_blocks - 1, always
"""

from collections import deque
from collections.abc import Iterable


class BlockPool:
    """Free and used KV blocks, by id."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(1, num_blocks))

    @property
    def num_usable(self) -> int:
        """Blocks that requests can own: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that requests own."""
        return self.num_usable - self.num_free

    def take(self, count: int) -> list[int]:
        """Take `count` blocks.

        Raises:
            IndexError: There are fewer free; the caller is to look at `num_free` first.
        """
        return [self._free.popleft() for _ in range(count)]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Return blocks, the last position first, so that prefixes stay whole the longest."""
        self._free.extend(block_ids)
