"""Replicas that hold blocks, by the blocks' hashes; shared by what knows of prefix caches."""

from collections.abc import Iterator, Sequence, Set

_NO_HOLDERS: Set[int] = frozenset()


class BlockHolders:
    """Table of the replicas that hold each block; a block that none holds is not in it."""

    def __init__(self) -> None:
        self._holders: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, replica: int, block: bytes) -> None:
        """Record that a replica holds a block."""
        self._holders.setdefault(block, set()).add(replica)

    def discard(self, replica: int, block: bytes) -> None:
        """Record that a replica does not hold a block; nothing happens if none was recorded."""
        if (holders := self._holders.get(block)) is not None:
            holders.discard(replica)
            if not holders:
                del self._holders[block]

    def clear(self) -> None:
        """Remove all blocks."""
        self._holders.clear()

    def of(self, block: bytes) -> Set[int]:
        """Return the replicas that hold a block."""
        return self._holders.get(block, _NO_HOLDERS)

    def num_leading(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks of a prefix that a replica holds."""
        holders = self._holders
        for index, block in enumerate(hashes):
            if replica not in holders.get(block, _NO_HOLDERS):
                return index
        return len(hashes)


def levels_of(path: Sequence[Set[int]]) -> Iterator[tuple[int, Set[int]]]:
    """Return the numbers of leading blocks at which there are more replicas than at longer ones.

    Args:
        path: For each block of a prefix, the replicas that hold it and all blocks before it.

    Yields:
        A number of blocks and the replicas that hold so many or more, the longest part first.
    """
    num_seen = 0
    for depth in range(len(path), 0, -1):
        if len(path[depth - 1]) > num_seen:
            num_seen = len(path[depth - 1])
            yield depth, path[depth - 1]
