"""Transfers of a KV store that have not ended: the blocks they hold, and the requests that wait.

Together they hold no more than a share of the pool, so that a store that is slow, or loses some of
what it is told, leaves room to compute.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.block_pool import BlockPool
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock

POOL_SHARE = 4  # transfers hold a fourth of the pool, at most


@dataclass(slots=True, eq=False)
class Transfer:
    """Blocks that a store reads or writes.

    Attributes:
        request: Who waits for a load.
        deadline_s: Until when, on the monotonic clock.
        is_stale: What a load brings is not to be found.
    """

    transfer_id: int
    cross_blocks: Sequence[CrossGroupBlock]
    is_load: bool
    request: Request | None = None
    deadline_s: float = 0.0
    is_stale: bool = False

    @property
    def block_ids(self) -> list[int]:
        """Every block of it, the end first."""
        return [
            b for cross_block in reversed(self.cross_blocks) for b in cross_block.block_ids if b
        ]


class OpenTransfers:
    """Begin and end transfers; their blocks have an owner more in between.

    Args:
        pool: Whose blocks they are.
        num_groups: KV groups: the blocks of a whole column.
    """

    def __init__(self, pool: BlockPool, num_groups: int) -> None:
        self.most_blocks = max(num_groups, pool.num_usable // POOL_SHARE)
        self._pool = pool
        self._open: dict[int, Transfer] = {}
        self._unsent: dict[int, Transfer] = {}  # the worker's half does not know of these
        self._waited_for: dict[Request, Transfer] = {}  # by deadline, as all may wait equally long
        self._num_blocks = 0
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        """Blocks that further transfers may hold."""
        return self.most_blocks - self._num_blocks

    def values(self) -> Sequence[Transfer]:
        """Return all of them, the oldest first."""
        return list(self._open.values())

    def begin(self, cross_blocks: Sequence[CrossGroupBlock], *, is_load: bool) -> Transfer:
        """Open a transfer; its blocks have counted it as an owner already."""
        self._last_id += 1
        transfer = Transfer(self._last_id, cross_blocks, is_load)
        self._open[self._last_id] = self._unsent[self._last_id] = transfer
        self._num_blocks += len(transfer.block_ids)
        return transfer

    def find(self, transfer_id: int) -> Transfer | None:
        """Return an open transfer."""
        return self._open.get(transfer_id)

    def end(self, transfer: Transfer, *, is_kept: bool = False) -> Request | None:
        """Give a transfer's blocks back, what was loaded to be found; returns who waits for it."""
        del self._open[transfer.transfer_id]
        self._unsent.pop(transfer.transfer_id, None)
        block_ids = transfer.block_ids
        self._num_blocks -= len(block_ids)
        if transfer.is_load and is_kept and not transfer.is_stale:
            self._keep(transfer)
        self._pool.give_back(block_ids)
        return self._call(transfer)

    def send(self) -> Sequence[Transfer]:
        """Return those that the worker's half has not been told of; it is told now."""
        unsent, self._unsent = self._unsent, {}
        return list(unsent.values())

    def unsent(self) -> Sequence[Transfer]:
        """Return those that the worker's half has not been told of."""
        return list(self._unsent.values())

    def let_wait(self, request: Request, transfer: Transfer, deadline_s: float) -> None:
        """Note that a request waits for a load."""
        transfer.request, transfer.deadline_s = request, deadline_s
        self._waited_for[request] = transfer

    def call_late(self, now_s: float) -> Iterator[Request]:
        """Yield the requests that have waited too long; they wait no more."""
        while self._waited_for:
            transfer = next(iter(self._waited_for.values()))
            if transfer.deadline_s > now_s or (request := self._call(transfer)) is None:
                return
            yield request

    def abandon(self, request: Request) -> None:
        """The request, if it waits, waits no more."""
        if request in self._waited_for:
            self._call(self._waited_for[request])

    def call_all(self) -> list[Request]:
        """Return all who wait; they wait no more."""
        waiting = list(self._waited_for)
        for request in waiting:
            self.abandon(request)
        return waiting

    def forget_contents(self) -> None:
        """Let nobody find what is on its way."""
        for transfer in self._open.values():
            transfer.is_stale = True

    def _call(self, transfer: Transfer) -> Request | None:
        request, transfer.request = transfer.request, None
        if request is not None:
            del self._waited_for[request]
        return request

    def _keep(self, transfer: Transfer) -> None:
        for cross_block in transfer.cross_blocks:
            for group, block_id in enumerate(cross_block.block_ids):
                if block_id:
                    self._pool.keep(block_id, group, cross_block.block_hash)
