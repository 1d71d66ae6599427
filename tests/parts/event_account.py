"""What the events of the prefix cache say it holds, against what it holds."""

from quire.cached_blocks import CachedBlocks
from quire.engine.core import EngineCore
from quire.engine.kv_cache.block_hash import BlockHasher
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.messages import BlocksStored, KVEvent, KVEventBatch, ReadKVSnapshot


class EventAccount:
    """Readers of the events: one of each batch, and one that begins with a snapshot."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._reader = CachedBlocks()
        self._number = 0

    def take(self, batches: list[KVEventBatch]) -> None:
        """Apply what a step reports, and see that each block is what its event says."""
        for batch in batches:
            self._number += 1
            assert batch.number == self._number
            assert batch.events, "an empty batch"
            assert self._reader.apply(batch)
            for event in batch.events:
                self._check_stored(event)

    def check(self, core: EngineCore) -> None:
        """See that events and snapshot, with what no step has reported yet, are the cache."""
        (snapshot,) = core.control(ReadKVSnapshot())
        late = CachedBlocks()
        assert late.apply(snapshot)
        assert late.of() == self._cached(), "the snapshot is not what is cached"
        assert snapshot.number == self._number
        self._check_order(snapshot)
        if not self._kv.journal:
            assert self._reader.of() == self._cached(), "the events are not what is cached"

    def _cached(self) -> set[tuple[int, bytes]]:
        pool = self._kv.pool
        contents = (pool.content(block) for block in range(pool.num_blocks))
        return {content for content in contents if content is not None}

    def _check_stored(self, event: KVEvent) -> None:
        if not isinstance(event, BlocksStored):
            return
        size = self._kv.block_size
        assert event.block_size == size
        assert event.position % size == 0
        assert len(event.token_ids) == size * len(event.hashes)
        hashes = [event.parent]
        BlockHasher(size, b"").extend(hashes, event.token_ids, len(event.hashes))
        assert hashes[1:] == event.hashes, "the hashes are not those of the tokens"

    def _check_order(self, snapshot: KVEventBatch) -> None:
        """See that each block of a snapshot comes after its parent."""
        all_blocks = {(e.group, block) for e in snapshot.events for block in e.hashes}
        seen = set()
        for event in snapshot.events:
            self._check_stored(event)
            parent = event.group, event.parent
            assert parent in seen or parent not in all_blocks
            seen.update((event.group, block) for block in event.hashes)
