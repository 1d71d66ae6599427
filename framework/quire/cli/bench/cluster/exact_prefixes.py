"""An oracle of the replicas' prefix caches: what each pool holds, and what is on its way there."""

from collections.abc import Callable, Iterator, Sequence, Set

from quire.engine.kv_cache.block_pool import BlockPool
from quire.launch.replicas.prefix_index import NO_HOLDERS

Watch = Callable[[bytes], None]


class WatchedPool(BlockPool):
    """A block pool that reports which contents it caches and evicts.

    Args:
        num_blocks: Number of blocks in the pool, the null block included.
        on_cached: Function called with the hash of each content that is cached.
        on_evicted: Function called with the hash of each content that is evicted.
    """

    def __init__(self, num_blocks: int, on_cached: Watch, on_evicted: Watch) -> None:
        super().__init__(num_blocks)
        self._on_cached, self._on_evicted = on_cached, on_evicted

    def add_to_cache(self, block_id: int, group: int, block_hash: bytes) -> None:
        """Cache a block, and report it if its content was not cached."""
        super().add_to_cache(block_id, group, block_hash)
        if self.find(group, block_hash) == block_id:
            self._on_cached(block_hash)

    def _evict(self) -> int:
        before = {next(iter(self._cached))}
        content = self.content(*before)
        block_id = super()._evict()
        if content is not None:
            self._on_evicted(content[1])
        return block_id


class ExactPrefixes:
    """The contents of all pools, with the prompts that are being computed."""

    def __init__(self) -> None:
        self._holders: dict[bytes, set[int]] = {}
        self._held: dict[int, set[bytes]] = {}

    def pool_of(self, replica: int) -> Callable[[int], BlockPool]:
        """Return a function that makes the pool of a replica."""

        def make(num_blocks: int) -> BlockPool:
            return WatchedPool(
                num_blocks,
                lambda block: self._add(replica, block),
                lambda block: self._remove(replica, block),
            )

        return make

    def expect(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Record that a replica will compute the blocks of a prompt."""
        for block in hashes:
            self._add(replica, block)

    def start(self, replica: int, num_blocks: int) -> None:
        """Add an empty replica."""
        del num_blocks
        self.forget(replica)

    def forget(self, replica: int) -> None:
        """Remove a replica with its contents."""
        for block in self._held.pop(replica, ()):
            self._drop(replica, block)

    def clear(self) -> None:
        """Remove everything."""
        self._holders.clear()
        self._held.clear()

    def touch(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Do nothing: the pools themselves report what they hold."""

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Yield numbers of leading blocks with the replicas that hold so many, the longest first.

        A pool may hold a block without those before it, which is of no use.
        """
        path: list[Set[int]] = []
        for block in hashes:
            holders = self._holders.get(block, NO_HOLDERS)
            common = holders & path[-1] if path else holders
            if not common:
                break
            path.append(common)
        num_seen = 0
        for depth in range(len(path), 0, -1):
            if len(path[depth - 1]) > num_seen:
                num_seen = len(path[depth - 1])
                yield depth, path[depth - 1]

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks that a replica holds."""
        held = self._held.get(replica, NO_HOLDERS)
        for index, block in enumerate(hashes):
            if block not in held:
                return index
        return len(hashes)

    def _add(self, replica: int, block: bytes) -> None:
        self._holders.setdefault(block, set()).add(replica)
        self._held.setdefault(replica, set()).add(block)

    def _remove(self, replica: int, block: bytes) -> None:
        self._held.get(replica, set()).discard(block)
        self._drop(replica, block)

    def _drop(self, replica: int, block: bytes) -> None:
        if (holders := self._holders.get(block)) is not None:
            holders.discard(replica)
            if not holders:
                del self._holders[block]
