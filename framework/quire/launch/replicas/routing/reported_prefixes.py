"""The replicas' prefix caches as they report them, with the prompts that are on their way there.

A prompt that a replica was sent counts as cached at once, and until the replica reports that it has
stored and removed its blocks. Of those that are never reported, as those of an aborted request, the
oldest are forgotten when there are more than the replica can hold.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence, Set

from quire.launch.replicas.routing.block_holders import BlockHolders, levels_of
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEvent


class ReportedPrefixes:
    """Blocks by hash, with the replicas that have them."""

    def __init__(self) -> None:
        self._holders = BlockHolders()
        self._stored: dict[int, Counter[bytes]] = {}  # number of KV groups that hold a block
        self._expected: dict[int, OrderedDict[bytes, None]] = {}  # the oldest first
        self._capacity: dict[int, int] = {}

    def start(self, replica: int, num_blocks: int) -> None:
        """Add a replica that holds nothing yet.

        Args:
            replica: Index of the replica.
            num_blocks: Number of blocks that it can hold.
        """
        self.forget(replica)
        self._stored[replica], self._expected[replica] = Counter(), OrderedDict()
        self._capacity[replica] = num_blocks

    def forget(self, replica: int) -> None:
        """Remove a replica with its blocks; nothing happens if it is unknown."""
        for blocks in (self._stored.pop(replica, ()), self._expected.pop(replica, ())):
            for block in blocks:
                self._holders.discard(replica, block)

    def clear(self) -> None:
        """Remove all blocks of all replicas."""
        for replica, num_blocks in list(self._capacity.items()):
            if replica in self._stored:
                self.start(replica, num_blocks)

    def touch(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Record that a replica will compute the blocks of a prefix that it does not have."""
        stored, expected = self._stored[replica], self._expected[replica]
        for block in hashes:
            if block not in stored:
                expected[block] = None
                expected.move_to_end(block)
                self._holders.add(replica, block)
        for _ in range(len(expected) - self._capacity[replica]):
            self._holders.discard(replica, expected.popitem(last=False)[0])

    def note_stored(self, replica: int, hashes: Iterable[bytes]) -> None:
        """Record that a KV group of a replica has stored blocks."""
        stored, expected = self._stored[replica], self._expected[replica]
        for block in hashes:
            stored[block] += 1
            expected.pop(block, None)
            self._holders.add(replica, block)

    def note_removed(self, replica: int, hashes: Iterable[bytes]) -> None:
        """Record that a KV group of a replica holds blocks no longer."""
        stored = self._stored[replica]
        for block in hashes:
            stored[block] -= 1
            if stored[block] <= 0:
                del stored[block]
                if block not in self._expected[replica]:
                    self._holders.discard(replica, block)

    def note_cleared(self, replica: int) -> None:
        """Record that a replica holds nothing, and that its running requests store nothing."""
        self.start(replica, self._capacity[replica])

    def apply(self, replica: int, events: Iterable[KVEvent]) -> None:
        """Apply the changes of a replica's cache."""
        for event in events:
            match event:
                case BlocksStored():
                    self.note_stored(replica, event.hashes)
                case BlocksRemoved():
                    self.note_removed(replica, event.hashes)
                case CacheCleared():
                    self.note_cleared(replica)

    def replace(self, replica: int, hashes: Iterable[bytes]) -> None:
        """Record all blocks that the KV groups of a replica hold; prompts on their way stay.

        Args:
            replica: Index of the replica.
            hashes: Hash of each block of each KV group.
        """
        expected = self._expected[replica]
        self.start(replica, self._capacity[replica])
        self.touch(replica, list(expected))
        self.note_stored(replica, hashes)

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Return the replicas that hold a part of a prefix; see `levels_of`.

        A replica may hold a block without those before it, which is of no use.
        """
        path: list[Set[int]] = []
        for block in hashes:
            holders = self._holders.of(block)
            common = holders & path[-1] if path else holders
            if not common:
                break
            path.append(common)
        return levels_of(path)

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks that a replica holds."""
        return self._holders.num_leading(replica, hashes)
