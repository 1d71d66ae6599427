"""The engine's side of an outside KV store: what is asked of it, and the blocks that it holds.

A load warms the prefix cache: blocks are taken from the pool, filled by the store, named and given
back as cached ones, and the request that waited for them goes to the queue again, where it finds
them as it would find any other's. A load that fails or takes too long leaves nothing behind but a
request that computes. A save holds full blocks, which nobody writes any more, until it has ended.

Whatever the store does, a block of a transfer returns to the pool only when the store's worker half
has reported the transfer, or was never told of it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quire.engine.kv_cache import KVCacheManager
from quire.engine.request import Request
from quire.interfaces.kv_transfer import BlockColumn, KVLookup, KVStoreScheduler
from quire.messages import TransferReport

T = TypeVar("T")

MAX_LOADS = 2  # of one request: what is evicted again and again is quicker computed

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Transfer:
    """Blocks that the store holds; a load has a request that waits, as long as it waits."""

    columns: tuple[BlockColumn, ...]
    is_load: bool
    request: Request | None = None
    deadline_s: float = 0.0
    is_sent: bool = False
    is_stale: bool = False  # its content is not to be found when it arrives

    @property
    def block_ids(self) -> list[int]:
        """Every block of it, the end first."""
        return [b for column in reversed(self.columns) for b in column.block_ids]


@dataclass(frozen=True, slots=True)
class StepTransfers:
    """What a step tells the worker's half: the store's own message, and what begins with it."""

    message: bytes = b""
    loads: Sequence[int] = ()
    saves: Sequence[int] = ()
    is_open: bool = False  # the worker's half has something to report, now or later


NO_TRANSFERS = StepTransfers()


@dataclass(slots=True)
class KVTransfers:
    """Open transfers, and the store that makes them.

    Args:
        store: The half beside the scheduler; what it raises switches it off.
        kv: Whose blocks are moved.
        timeout_s: How long a request waits for a load.
        name: What the log calls the store.
    """

    store: KVStoreScheduler
    kv: KVCacheManager
    timeout_s: float
    name: str
    num_hits: int = 0  # tokens that loads brought
    _open: dict[int, _Transfer] = field(default_factory=dict)
    _stranded: list[Request] = field(default_factory=list)
    _next_id: int = 0
    _is_off: bool = False

    @property
    def num_open(self) -> int:
        """Transfers that have not ended."""
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is open, or a request is to hear that its load will not come."""
        return bool(self._open or self._stranded)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a load."""
        return sum(1 for transfer in self._open.values() if transfer.request is not None)

    def look_up(self, request: Request, num_hit_blocks: int) -> int | None:
        """Return how many blocks beyond a local hit the store has; None: it will say later."""
        hashes = self.kv.hashes_beyond(request, num_hit_blocks)
        if self._is_off or not hashes or not request.reads_cache or request.num_loads >= MAX_LOADS:
            return 0
        nothing: int | None = 0
        return self._ask(
            lambda: _num_offered(self.store.lookup(request.request_id, hashes), len(hashes)),
            otherwise=nothing,
        )

    def load(self, request: Request, num_hit_blocks: int, num_blocks: int, now_s: float) -> bool:
        """Begin to load blocks behind a local hit; the request waits, unless this is False.

        The caller has seen to it that the pool has the blocks.
        """
        hashes = self.kv.hashes_beyond(request, num_hit_blocks)[:num_blocks]
        groups = range(len(self.kv.specs))
        columns = [BlockColumn(name, tuple(self.kv.pool.take(len(groups)))) for name in hashes]
        transfer = _Transfer(tuple(columns), is_load=True, deadline_s=now_s + self.timeout_s)
        transfer_id = self._start(transfer)
        request.num_loads += 1
        self._ask(lambda: self.store.start_load(transfer_id, columns), otherwise=None)
        transfer.request = None if self._is_off else request
        return not self._is_off

    def offer(self, request: Request, fresh: range) -> None:
        """Offer the store the blocks of a request that have become full and computed."""
        if self._is_off or not request.is_cacheable:
            return  # what is not to be found has no names either
        columns = [
            BlockColumn(request.hashes[index + 1], tuple(t[index] for t in request.block_ids))
            for index in fresh
            if all(index < len(table) and table[index] for table in request.block_ids)
        ]
        if not columns:
            return
        transfer = _Transfer(tuple(columns), is_load=False)
        self.kv.pool.share(transfer.block_ids)
        transfer_id = self._start(transfer)
        num_new = self._ask(lambda: self.store.start_save(transfer_id, columns), otherwise=0)
        if not num_new and transfer_id in self._open:  # where it raised, all unsent have ended
            self._end(transfer_id)

    def plan_step(self) -> StepTransfers:
        """Return what the worker's half must know before the next step."""
        if not self._open:
            return NO_TRANSFERS
        fresh = [i for i, transfer in self._open.items() if not transfer.is_sent]
        message = b"" if self._is_off else self._ask(lambda: bytes(self.store.plan_step()), b"")
        if self._is_off:
            return StepTransfers(is_open=bool(self._open))
        for transfer_id in fresh:
            self._open[transfer_id].is_sent = True
        loads = [i for i in fresh if self._open[i].is_load]
        return StepTransfers(message, loads, [i for i in fresh if i not in loads], is_open=True)

    def take(self, report: TransferReport) -> list[Request]:
        """End the transfers that a step reported; returns the requests that waited for them."""
        ready: list[Request] = []
        for has_failed, ids in ((False, report.done), (True, report.failed)):
            for transfer_id in ids:
                if transfer_id not in self._open:
                    logger.warning("%s reports an unknown transfer", self.name)
                    continue
                self._tell_end(transfer_id, has_failed)
                ready += self._end(transfer_id, is_kept=not has_failed)
        return ready

    def late(self, now_s: float) -> list[Request]:
        """Return the requests whose load will not come, or not in time.

        The store keeps the blocks of a load that it was told of.
        """
        late, self._stranded = self._stranded, []
        for transfer in self._open.values():
            if transfer.request is not None and transfer.deadline_s <= now_s:
                logger.warning(
                    "%s did not load within %g s; computing instead",
                    self.name, self.timeout_s,
                )  # fmt: skip
                late.append(transfer.request)
                transfer.request.num_loads = MAX_LOADS
                transfer.request = None
        return late

    def abandon(self, request: Request) -> None:
        """The request is over: nobody waits for its load any more."""
        for transfer in self._open.values():
            if transfer.request is request:
                transfer.request = None
        self._stranded = [other for other in self._stranded if other is not request]

    def forget_request(self, request: Request) -> None:
        """Tell the store that a request is over."""
        if not self._is_off:
            self._ask(lambda: self.store.forget_request(request.request_id), otherwise=None)

    def reset(self) -> None:
        """Make the store, and what is on its way from it, forget every content."""
        for transfer in self._open.values():
            transfer.is_stale = True
        if not self._is_off:
            self._ask(self.store.reset, otherwise=None)

    def shutdown(self) -> None:
        """Let the store give everything back."""
        self._ask(self.store.shutdown, otherwise=None)

    def _start(self, transfer: _Transfer) -> int:
        self._next_id += 1
        self._open[self._next_id] = transfer
        return self._next_id

    def _tell_end(self, transfer_id: int, has_failed: bool) -> None:
        if not self._is_off:
            self._ask(lambda: self.store.finish(transfer_id, has_failed=has_failed), None)

    def _end(self, transfer_id: int, *, is_kept: bool = False) -> Iterable[Request]:
        """Give a transfer's blocks back; what was loaded can be found from now on."""
        transfer = self._open.pop(transfer_id)
        if transfer.is_load and is_kept and not transfer.is_stale:
            for column in transfer.columns:
                for group, block_id in enumerate(column.block_ids):
                    self.kv.pool.keep(block_id, group, column.block_hash)
            self.num_hits += len(transfer.columns) * self.kv.block_size
        self.kv.pool.give_back(transfer.block_ids)
        if transfer.request is None:
            return []
        if not is_kept:
            transfer.request.num_loads = MAX_LOADS
        return [transfer.request]

    def _ask(self, call: Callable[[], T], otherwise: T) -> T:
        """Call the store; one that raises is not asked again."""
        try:
            return call()
        except Exception:  # the edge of a plugin
            logger.exception("%s failed and is switched off", self.name)
            self._is_off = True
            for transfer_id in [i for i, t in self._open.items() if not t.is_sent]:
                self._end_unsent(transfer_id)
            return otherwise

    def _end_unsent(self, transfer_id: int) -> None:
        """End a transfer that the worker's half never heard of."""
        transfer = self._open[transfer_id]
        request, transfer.request = transfer.request, None
        self._end(transfer_id)
        if request is not None:
            self._stranded.append(request)


def _num_offered(answer: KVLookup, most: int) -> int | None:
    """Return how many blocks a store's answer offers; None: it will say later."""
    return None if answer.is_pending else max(0, min(answer.num_blocks, most))
