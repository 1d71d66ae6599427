"""The blocks that engines have in their prefix caches, as their events say."""

from typing import Literal

from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, KVEventBatch

Blocks = set[tuple[int, bytes]]  # KV group and hash


class BatchOrder:
    """The last batch of each replica, by which a missing one is noticed."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, int]] = {}  # incarnation and number

    def take(self, batch: KVEventBatch) -> Literal["next", "first", "old", "gap"]:
        """Take a batch, unless one before it is missing.

        Returns:
            "next" if it follows the last one of its replica; "first" if it follows an empty cache,
            as a snapshot does, too; "old" if its changes are known; "gap" if it was not taken,
            because batches before it are missing.
        """
        incarnation, number = self._last.get(batch.replica, ("", 0))
        is_same = batch.incarnation == incarnation
        if is_same and batch.number <= number:
            return "old"
        if not batch.is_snapshot and batch.number != (number + 1 if is_same else 1):
            return "gap"
        self._last[batch.replica] = batch.incarnation, batch.number
        return "next" if is_same and not batch.is_snapshot else "first"


class CachedBlocks:
    """The cached blocks of each replica, kept by the batches of the feed in their order."""

    def __init__(self) -> None:
        self._blocks: dict[int, Blocks] = {}
        self._order = BatchOrder()

    def of(self, replica: int = 0) -> Blocks:
        """Return the KV group and hash of each cached block of a replica."""
        return self._blocks.setdefault(replica, set())

    def apply(self, batch: KVEventBatch) -> bool:
        """Apply a batch, or a snapshot; one that is older than what is known changes nothing.

        Returns:
            Whether the blocks of the replica are known now. If not, a batch before this one is
            missing, and nothing was applied; a snapshot is needed.
        """
        match self._order.take(batch):
            case "gap":
                return False
            case "old":
                return True
            case "first":
                self._blocks[batch.replica] = set()
        blocks = self.of(batch.replica)
        for event in batch.events:
            _apply_event(blocks, event)
        return True


def _apply_event(blocks: Blocks, event: KVEvent) -> None:
    match event:
        case BlocksStored():
            blocks.update((event.group, block) for block in event.hashes)
        case BlocksRemoved():
            blocks.difference_update((event.group, block) for block in event.hashes)
        case CacheCleared():
            blocks.clear()
