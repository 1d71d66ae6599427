"""Journal of the prefix cache: changes since the last batch, and what each cached block holds."""

import secrets

import msgspec

from quire.engine.request import Request
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, KVEventBatch

Key = tuple[int, bytes]  # KV group and hash


class CacheJournal:
    """Changes of one engine's prefix cache, in numbered batches.

    Args:
        block_size: Number of tokens per block.

    Attributes:
        incarnation: Random name of the engine, another one after each start.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.incarnation = secrets.token_hex(8)
        self._number = 0
        self._events: list[KVEvent] = []
        self._cached: dict[Key, BlocksStored] = {}  # each with one block

    def __bool__(self) -> bool:
        """Whether anything has changed since the last batch."""
        return bool(self._events)

    def note_stored(self, request: Request, group: int, index: int) -> None:
        """Note that the cache holds a block of a request from now on.

        Args:
            request: The request, which has the block's tokens and its hash.
            group: KV group of the block.
            index: Index of the block in the request's block table.
        """
        start = index * self._block_size
        parent, block_hash = request.hashes[index : index + 2]
        adapter = request.message.adapter
        stored = BlocksStored(
            group=group,
            hashes=[block_hash],
            parent=parent,
            position=start,
            token_ids=request.token_ids[start : start + self._block_size],
            block_size=self._block_size,
            adapter=None if adapter is None else adapter.name,
            cache_salt=request.message.cache_salt,
        )
        self._cached[group, block_hash] = stored
        _append_stored(self._events, stored)

    def note_removed(self, group: int, block_hash: bytes) -> None:
        """Note that the cache holds a block no longer."""
        del self._cached[group, block_hash]
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved) and last.group == group:
            last.hashes.append(block_hash)
        else:
            self._events.append(BlocksRemoved(group, [block_hash]))

    def note_cleared(self) -> None:
        """Note that the cache is empty."""
        self._cached.clear()
        self._events = [CacheCleared()]

    def take(self) -> list[KVEventBatch]:
        """Return the changes since the last call as a batch; no batch if there are none."""
        if not self._events:
            return []
        self._number += 1
        events, self._events = self._events, []
        return [KVEventBatch(0, self.incarnation, self._number, events)]

    def snapshot(self) -> KVEventBatch:
        """Return all cached blocks, each after its parent, if that is cached.

        The snapshot has the number of the last batch. Changes that were in no batch yet are in both
        the snapshot and the next batch, which does not matter to a set of blocks.
        """
        events: list[KVEvent] = []
        done: set[Key] = set()
        for key in self._cached:
            for stored in self._with_ancestors(key, done):
                _append_stored(events, stored)
        return KVEventBatch(0, self.incarnation, self._number, events, is_snapshot=True)

    def _with_ancestors(self, key: Key, done: set[Key]) -> list[BlocksStored]:
        """Return a cached block after its cached ancestors, without those done already."""
        path = []
        while key in self._cached and key not in done:
            done.add(key)
            path.append(self._cached[key])
            key = key[0], self._cached[key].parent
        return path[::-1]


def _append_stored(events: list[KVEvent], stored: BlocksStored) -> None:
    """Append one block: to the last event, if that ends with its parent."""
    last = events[-1] if events else None
    if isinstance(last, BlocksStored) and _key_of(last) == (stored.group, stored.parent):
        last.hashes.extend(stored.hashes)
        last.token_ids.extend(stored.token_ids)
    else:
        hashes, token_ids = list(stored.hashes), list(stored.token_ids)
        events.append(msgspec.structs.replace(stored, hashes=hashes, token_ids=token_ids))


def _key_of(stored: BlocksStored) -> Key:
    return stored.group, stored.hashes[-1]
