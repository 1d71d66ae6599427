"""Changes of a replica's prefix cache, as the routers of Ray Serve read them.

A router names blocks by hashes of its own, which it can compute from a prompt's tokens without the
checkpoint. The replica translates: the hash of a block follows from its parent's and its tokens.

Serve collects a report of each replica once a second, and a router may miss some. So a report has
the changes of the last seconds, with numbers, and now and then the whole contents.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

import msgspec

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, KVEventBatch
from quire.ray.prompt_reader import PromptTokens, as_request, owner_of

HASH_BYTES = 8  # two blocks of the same hash cost a wrong guess
WINDOW_S = 10.0  # of changes in a report
WHOLE_EVERY = 30  # reports
NUM_WHOLE = 5  # reports in a row that have the whole contents


class CacheChange(msgspec.Struct, frozen=True, array_like=True):
    """What a batch of events has changed, or the whole contents.

    Attributes:
        number: Number of the change, from 1 on, without gaps; of whole contents, that of the last
            change in them.
        stored: Hashes of blocks that are cached now and were not before.
        removed: Hashes of blocks that are cached no longer.
        was_cleared: Whether the cache was cleared in between; `stored` was stored after that.
        is_whole: Whether `stored` is all that is cached.
    """

    number: int
    stored: list[bytes]
    removed: list[bytes] = []
    was_cleared: bool = False
    is_whole: bool = False


def routing_hasher(block_size: int) -> BlockHasher:
    """Return the hasher of the routers."""
    return BlockHasher(block_size, b"", HASH_BYTES)


class CacheReport:
    """The reports of one replica.

    Args:
        block_size: Number of tokens per block.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, block_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._hasher = routing_hasher(block_size)
        self._clock = clock
        self._names: dict[bytes, bytes] = {}  # hash of the routers by hash of the engine
        self._groups: Counter[bytes] = Counter()  # KV groups that hold a block, by engine's hash
        self._stored: dict[bytes, None] = {}  # by the batch that is taken, in order
        self._removed: dict[bytes, None] = {}
        self._was_cleared = False
        self._changes: deque[tuple[float, CacheChange]] = deque()
        self._number = self._num_reports = 0

    def take(self, batch: KVEventBatch) -> None:
        """Take a batch of the engine's feed, or a snapshot."""
        self._stored, self._removed, self._was_cleared = {}, {}, False
        if batch.is_snapshot:
            self._clear()
        for event in batch.events:
            self._apply(event)
        self._number += 1
        change = CacheChange(
            self._number,
            list(self._stored),
            list(self._removed),
            self._was_cleared,
            batch.is_snapshot,
        )
        self._changes.append((self._clock(), change))

    def report(self) -> list[CacheChange]:
        """Return the changes of the last seconds; in some reports after the whole contents."""
        while self._changes and self._changes[0][0] < self._clock() - WINDOW_S:
            self._changes.popleft()
        self._num_reports += 1
        if self._num_reports % WHOLE_EVERY >= NUM_WHOLE:
            return [change for _, change in self._changes]
        return [CacheChange(self._number, list(self._names.values()), is_whole=True)]

    def _apply(self, event: KVEvent) -> None:
        match event:
            case BlocksStored():
                self._store(event)
            case BlocksRemoved():
                self._remove(event.hashes)
            case CacheCleared():
                self._clear()

    def _store(self, event: BlocksStored) -> None:
        """Name blocks; without their parent they have no name, and a prefix ends before them."""
        if event.position == 0:
            owner = owner_of(event.adapter, event.cache_salt)
            hashes = [self._hasher.start(as_request("", PromptTokens([], owner, None)))]
        elif event.parent in self._names:
            hashes = [self._names[event.parent]]
        else:
            return
        self._hasher.extend(hashes, event.token_ids, len(event.hashes))
        for block, name in zip(event.hashes, hashes[1:], strict=True):
            self._groups[block] += 1
            if block not in self._names:
                self._names[block] = name
                if name not in self._removed:
                    self._stored[name] = None
                self._removed.pop(name, None)

    def _remove(self, hashes: Iterable[bytes]) -> None:
        for block in hashes:
            self._groups[block] -= 1
            if self._groups[block] > 0:
                continue
            del self._groups[block]
            if (name := self._names.pop(block, None)) is not None:
                if name not in self._stored:
                    self._removed[name] = None
                self._stored.pop(name, None)

    def _clear(self) -> None:
        for found in (self._names, self._groups, self._stored, self._removed):
            found.clear()
        self._was_cleared = True
