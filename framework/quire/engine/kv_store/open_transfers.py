"""Open transfers of a KV store: the blocks they hold, and the requests that wait for them.

Together they hold at most a fixed fraction of the pool, so that a slow or lossy store leaves enough
blocks to compute.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock

POOL_DIVISOR = 4  # transfers hold at most a quarter of the pool


@dataclass(slots=True, eq=False)
class Transfer:
    """Blocks that a store reads or writes.

    Attributes:
        source: Request whose prefix is loaded; None for a save.
        first_block: Index of the first block of a load in that prefix.
        request: Request that waits for a load.
        deadline_s: Time until which it waits, on the monotonic clock.
        is_stale: Whether the loaded blocks must not be added to the prefix cache.
    """

    transfer_id: int
    cross_blocks: Sequence[CrossGroupBlock]
    source: Request | None = None
    first_block: int = 0
    request: Request | None = None
    deadline_s: float = 0.0
    is_stale: bool = False

    @property
    def is_load(self) -> bool:
        """Whether the store writes the blocks."""
        return self.source is not None

    @property
    def block_ids(self) -> list[int]:
        """All block ids of the transfer, the last position first."""
        return [
            b for cross_block in reversed(self.cross_blocks) for b in cross_block.block_ids if b
        ]


class OpenTransfers:
    """Open transfers; each owns one reference to each of its blocks.

    Args:
        kv: Cache manager of the blocks.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self.max_blocks = max(len(kv.specs), kv.pool.num_usable // POOL_DIVISOR)
        self._kv = kv
        self._open: dict[int, Transfer] = {}
        self._unsent: dict[int, Transfer] = {}  # not sent to the worker side yet
        self._waiters: dict[Request, Transfer] = {}  # by deadline, as all have the same timeout
        self._num_blocks = 0
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        """Number of blocks that further transfers may hold."""
        return self.max_blocks - self._num_blocks

    def values(self) -> Sequence[Transfer]:
        """Return all open transfers, the oldest first."""
        return list(self._open.values())

    def begin(
        self,
        cross_blocks: Sequence[CrossGroupBlock],
        source: Request | None = None,
        first_block: int = 0,
    ) -> Transfer:
        """Open a transfer, which takes over a reference to each block from the caller.

        Args:
            cross_blocks: Blocks of the transfer.
            source: Request whose prefix is loaded; None: the blocks are saved.
            first_block: Index of the first block of a load in that prefix.
        """
        self._last_id += 1
        transfer = Transfer(self._last_id, cross_blocks, source, first_block)
        self._open[self._last_id] = self._unsent[self._last_id] = transfer
        self._num_blocks += len(transfer.block_ids)
        return transfer

    def find(self, transfer_id: int) -> Transfer | None:
        """Return an open transfer; None: there is none with this id."""
        return self._open.get(transfer_id)

    def end(self, transfer: Transfer, *, is_kept: bool = False) -> Request | None:
        """End a transfer and free its blocks.

        Args:
            transfer: Open transfer.
            is_kept: Add loaded blocks to the prefix cache.

        Returns:
            The request that waited for the transfer.
        """
        del self._open[transfer.transfer_id]
        self._unsent.pop(transfer.transfer_id, None)
        block_ids = transfer.block_ids
        self._num_blocks -= len(block_ids)
        if transfer.source is not None and is_kept and not transfer.is_stale:
            self._add_to_cache(transfer, transfer.source)
        self._kv.pool.free(block_ids)
        return self._pop_waiter(transfer)

    def pop_unsent(self) -> Sequence[Transfer]:
        """Return the transfers not sent to the worker side yet, and mark them as sent."""
        unsent, self._unsent = self._unsent, {}
        return list(unsent.values())

    def unsent(self) -> Sequence[Transfer]:
        """Return the transfers not sent to the worker side yet."""
        return list(self._unsent.values())

    def add_waiter(self, request: Request, transfer: Transfer, deadline_s: float) -> None:
        """Record that a request waits for a load."""
        transfer.request, transfer.deadline_s = request, deadline_s
        self._waiters[request] = transfer

    def pop_expired(self, now_s: float) -> Iterator[Request]:
        """Remove and yield the requests that have waited too long."""
        while self._waiters:
            transfer = next(iter(self._waiters.values()))
            if transfer.deadline_s > now_s or (request := self._pop_waiter(transfer)) is None:
                return
            yield request

    def abandon(self, request: Request) -> None:
        """Stop a request's wait, if it waits for a load."""
        if request in self._waiters:
            self._pop_waiter(self._waiters[request])

    def pop_all_waiters(self) -> list[Request]:
        """Remove and return all waiting requests."""
        waiting = list(self._waiters)
        for request in waiting:
            self.abandon(request)
        return waiting

    def mark_stale(self) -> None:
        """Mark all open transfers as stale: their loads are not added to the prefix cache."""
        for transfer in self._open.values():
            transfer.is_stale = True

    def _pop_waiter(self, transfer: Transfer) -> Request | None:
        request, transfer.request = transfer.request, None
        if request is not None:
            del self._waiters[request]
        return request

    def _add_to_cache(self, transfer: Transfer, source: Request) -> None:
        for index, cross_block in enumerate(transfer.cross_blocks, transfer.first_block):
            for group, block_id in enumerate(cross_block.block_ids):
                if block_id:
                    self._kv.add_to_cache(source, group, index, block_id)
