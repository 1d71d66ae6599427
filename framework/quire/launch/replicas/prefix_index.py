"""Index of the prompt blocks that each replica was sent: an exact radix tree in a flat table.

The hash of a block covers all tokens before it, the adapter and the cache salt, so a hash is a node
of the tree together with the path to it. A replica's blocks are in the order of their last use, a
prefix after its continuations. The least recently used ones go when there are more than the replica
can hold, so what remains is closed under prefixes:

    holders(block i) contains holders(block i + 1), always
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set

NO_HOLDERS: Set[int] = frozenset()


class PrefixIndex:
    """Prompt blocks by hash, with the replicas that were sent them."""

    def __init__(self) -> None:
        self._holders: dict[bytes, set[int]] = {}
        self._blocks: dict[int, OrderedDict[bytes, None]] = {}  # least recently used first
        self._capacity: dict[int, int] = {}

    def start(self, replica: int, num_blocks: int) -> None:
        """Add a replica that holds nothing yet.

        Args:
            replica: Index of the replica.
            num_blocks: Number of blocks that it can hold.
        """
        self.forget(replica)
        self._blocks[replica] = OrderedDict()
        self._capacity[replica] = num_blocks

    def forget(self, replica: int) -> None:
        """Remove a replica with its blocks; nothing happens if it is unknown."""
        for block in self._blocks.pop(replica, ()):
            self._drop(replica, block)

    def clear(self) -> None:
        """Remove all blocks of all replicas."""
        self._holders.clear()
        for blocks in self._blocks.values():
            blocks.clear()

    def touch(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Record that a replica uses a prefix now.

        Args:
            replica: Index of the replica.
            hashes: Hashes of the prefix's blocks, the first block first.
        """
        blocks, holders = self._blocks[replica], self._holders
        for block in reversed(hashes):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
                holders.setdefault(block, set()).add(replica)
        for _ in range(len(blocks) - self._capacity[replica]):
            self._drop(replica, blocks.popitem(last=False)[0])

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Return the replicas that hold a part of a prefix.

        Yields:
            A number of blocks and the replicas that hold so many or more, the longest part first;
            only numbers at which there are more replicas than before.
        """
        path = []
        for block in hashes:
            if not (holders := self._holders.get(block)):
                break
            path.append(holders)
        num_seen = 0
        for depth in range(len(path), 0, -1):
            if len(path[depth - 1]) > num_seen:
                num_seen = len(path[depth - 1])
                yield depth, path[depth - 1]

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks of a prefix that a replica holds."""
        holders = self._holders
        for index, block in enumerate(hashes):
            if replica not in holders.get(block, NO_HOLDERS):
                return index
        return len(hashes)

    def _drop(self, replica: int, block: bytes) -> None:
        holders = self._holders.get(block)
        if holders is not None:
            holders.discard(replica)
            if not holders:
                del self._holders[block]
