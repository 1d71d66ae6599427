"""Index of the prompt blocks that each replica was sent: an exact radix tree in a flat table.

The hash of a block covers all tokens before it, the adapter and the cache salt, so a hash is a node
of the tree together with the path to it. A replica's blocks are in the order of their last use, a
prefix after its continuations. The least recently used ones go when there are more than the replica
can hold, so what remains is closed under prefixes:

    holders(block i) contains holders(block i + 1), always
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set

from quire.launch.replicas.routing.block_holders import BlockHolders, levels_of


class PrefixIndex:
    """Prompt blocks by hash, with the replicas that were sent them."""

    def __init__(self) -> None:
        self._holders = BlockHolders()
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
            self._holders.discard(replica, block)

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
                holders.add(replica, block)
        for _ in range(len(blocks) - self._capacity[replica]):
            holders.discard(replica, blocks.popitem(last=False)[0])

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Return the replicas that hold a part of a prefix; see `levels_of`."""
        path = []
        for block in hashes:
            if not (holders := self._holders.of(block)):
                break
            path.append(holders)
        return levels_of(path)

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks of a prefix that a replica holds."""
        return self._holders.num_leading(replica, hashes)
