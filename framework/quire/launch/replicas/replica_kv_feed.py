"""Changes of the replicas' prefix caches as one feed; the death of a replica clears its cache."""

from collections.abc import Mapping, Sequence

import msgspec

from quire.messages import CacheCleared, KVEventBatch


class ReplicaKVFeed:
    """Batches of all replicas that were not returned yet."""

    def __init__(self) -> None:
        self._batches: list[KVEventBatch] = []
        self._last: dict[int, tuple[str, int]] = {}  # incarnation and number of each replica
        self._dead: set[int] = set()  # replicas whose last batch is that of their death

    def __bool__(self) -> bool:
        """Whether there are batches to return."""
        return bool(self._batches)

    def take(self, replica: int, batches: Sequence[KVEventBatch]) -> None:
        """Add the batches of a replica's step."""
        for batch in batches:
            self._dead.discard(replica)
            self._last[replica] = batch.incarnation, batch.number
            self._batches.append(msgspec.structs.replace(batch, replica=replica))

    def take_death(self, replica: int) -> None:
        """Add that the cache of a dead replica is gone, if there was anything in it."""
        if replica in self._last:
            incarnation, number = self._last[replica]
            cleared = KVEventBatch(replica, incarnation, number + 1, [CacheCleared()])
            self.take(replica, [cleared])
            self._dead.add(replica)

    def pop(self) -> list[KVEventBatch]:
        """Return the batches that have arrived since the last call."""
        batches, self._batches = self._batches, []
        return batches

    def join_snapshots(self, snapshots: Mapping[int, Sequence[KVEventBatch]]) -> list[KVEventBatch]:
        """Return the snapshots of all replicas, empty ones of those that are dead.

        There is none of a replica that came up after the others were asked. A reader that has
        missed some of its batches notices that by their numbers.

        Args:
            snapshots: Snapshots of the replicas that were asked, by index.
        """
        joined = [
            msgspec.structs.replace(snapshot, replica=replica)
            for replica, found in snapshots.items()
            for snapshot in found
        ]
        dead = self._dead - snapshots.keys()
        joined += [
            KVEventBatch(replica, *self._last[replica], [], is_snapshot=True) for replica in dead
        ]
        return sorted(joined, key=lambda snapshot: snapshot.replica)
