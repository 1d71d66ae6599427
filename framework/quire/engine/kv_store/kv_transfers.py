"""The engine's side of an outside KV store: what is asked of it, and when it is given up.

A load warms the prefix cache: blocks are taken from the pool, filled by the store, named and given
back as cached ones, and the request that waited for them goes to the queue again, where it finds
them as it would find any other's. A load that fails or takes too long leaves nothing behind but a
request that computes. A save holds full blocks, which nobody writes any more, until it has ended.

Whatever the store does, a block of a transfer returns to the pool only when the worker has reported
the transfer, or was never told of it. A store that raises, answers nonsense or ends nothing for too
long is switched off. The worker is told, its half then lets go of every block, and what was open
comes back as failed, or ends with that step. A store whose transfers were open when a step was
interrupted is switched off too: the orders and reports of that step may be lost.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_store.guarded_store import GuardedStore
from quire.engine.kv_store.load_blocks import take_cross_blocks
from quire.engine.kv_store.open_transfers import OpenTransfers, Transfer
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock, KVStoreScheduler
from quire.messages import TransferReport

MAX_LOADS = 2  # of one request: what is evicted again and again is quicker computed
MIN_SILENT_STEPS = 3  # a store is heard once a step, and a single step may take long

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepTransfers:
    """What a step tells the worker's half: the store's own message, and what begins with it."""

    message: bytes = b""
    loads: Sequence[int] = ()
    saves: Sequence[int] = ()
    is_open: bool = False  # the worker's half has something to report, now or later
    is_stopped: bool = False  # the worker's half is to be shut down


NO_TRANSFERS = StepTransfers()


class KVTransfers:
    """Open transfers, and the store that makes them.

    Args:
        store: The half beside the scheduler.
        kv: Whose blocks are moved.
        timeout_s: How long a request waits for an answer or a load, and the engine for the end of
            any transfer.
        name: What the log calls the store.

    Attributes:
        num_hits: Tokens that loads brought.
        num_unsaved: Columns that were not offered, because transfers held their share of the pool.
        num_resets: How often the store was made to forget; what it offered before is void.
    """

    def __init__(
        self, store: KVStoreScheduler, kv: KVCacheManager, timeout_s: float, name: str
    ) -> None:
        self.store = GuardedStore(store, name, self._end_unsent)
        self.kv = kv
        self.timeout_s = timeout_s
        self.name = name
        self.num_hits = self.num_unsaved = self.num_resets = 0
        self._open = OpenTransfers(kv.pool, len(kv.specs))
        self._stranded: list[Request] = []  # to hear that their load will not come
        self._heard_s = 0.0  # when a transfer ended, or the first one began
        self._num_silent_steps = 0  # planned since

    @property
    def num_open(self) -> int:
        """Transfers that have not ended."""
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is open, or a request is to hear that its load will not come."""
        return bool(self._open or self._stranded)

    # -- ask and load ----------------------------------------------------------------------------

    def may_have(self, request: Request, num_hit_blocks: int) -> bool:
        """Whether it is worth asking for what lies behind a local hit."""
        num_blocks = (len(request.token_ids) - 1) // self.kv.block_size
        return (
            not self.store.is_off and num_blocks > num_hit_blocks and request.num_loads < MAX_LOADS
        )

    def look_up(self, request: Request, num_hit_blocks: int) -> int | None:
        """Return how many blocks beyond a local hit the store has; None: it will say later."""
        if not self.may_have(request, num_hit_blocks):
            return 0
        hashes = self.kv.hashes_beyond(request, num_hit_blocks)
        return self.store.lookup(request.request_id, hashes)

    def load(
        self, request: Request, hit: PrefixHit | None, num_offered: int, num_spare: int
    ) -> bool:
        """Begin to load what fits of that behind a local hit; the request waits if this is True.

        Args:
            request: For whom.
            hit: What it finds already; stays in the cache.
            num_offered: Blocks that the store has behind the hit.
            num_spare: Blocks of the pool that are left free.
        """
        if self.store.is_off:
            return False
        room = self._open.room
        cross_blocks = take_cross_blocks(self.kv, request, hit, num_offered, room, num_spare)
        if not cross_blocks:
            return False
        transfer = self._begin(cross_blocks, is_load=True)
        request.num_loads += 1
        self.store.start_load(transfer.transfer_id, cross_blocks)
        if self.store.is_off:
            return False
        self._open.let_wait(request, transfer, time.monotonic() + self.timeout_s)
        return True

    def offer(self, request: Request, fresh: range) -> None:
        """Offer the store the blocks of a request that have become full and computed."""
        if self.store.is_off or not request.is_cacheable:
            return  # what is not to be found has no names either
        whole = [
            CrossGroupBlock(request.hashes[index + 1], tuple(t[index] for t in request.block_ids))
            for index in fresh
            if all(index < len(table) and table[index] for table in request.block_ids)
        ]
        if not (cross_blocks := self._cut(whole)):
            return
        transfer = self._begin(cross_blocks, is_load=False)
        self.kv.pool.share(transfer.block_ids)
        num_new = self.store.start_save(transfer.transfer_id, cross_blocks)
        if not num_new and self._open.find(transfer.transfer_id) is not None:
            self._open.end(transfer)  # where it raised, all unsent have ended

    # -- step by step ----------------------------------------------------------------------------

    def plan_step(self) -> StepTransfers:
        """Return what the worker's half must know before the next step."""
        if not self._open:
            return NO_TRANSFERS
        self._num_silent_steps += 1
        message = self.store.plan_step()
        if self.store.is_off:
            return StepTransfers(is_open=bool(self._open), is_stopped=True)
        fresh = self._open.send()
        loads = [transfer.transfer_id for transfer in fresh if transfer.is_load]
        saves = [transfer.transfer_id for transfer in fresh if not transfer.is_load]
        return StepTransfers(message, loads, saves, is_open=True)

    def take(self, report: TransferReport) -> list[Request]:
        """End the transfers that a step reported; returns the requests that waited for them."""
        ready = []
        for has_failed, ids in ((False, report.done), (True, report.failed)):
            for transfer_id in ids:
                transfer = self._open.find(transfer_id)
                if transfer is None:
                    logger.warning("%s reports an unknown transfer", self.name)
                    continue
                request = self._hear(transfer, has_failed)
                ready += [] if request is None else [request]
        return ready

    def late(self, now_s: float) -> list[Request]:
        """Return the requests whose load will not come, or not in time; give up a silent store.

        The store keeps the blocks of a load that it was told of.
        """
        if not self.is_busy:
            return []
        if self._is_silent(now_s) and not self.store.is_off:
            logger.error(
                "%s has ended none of %d open transfers for %g s and is switched off",
                self.name, len(self._open), self.timeout_s,
            )  # fmt: skip
            self.store.switch_off()
        late = list(self._open.call_late(now_s))
        if late:
            logger.warning(
                "%s did not load within %g s; computing instead", self.name, self.timeout_s
            )
        late += self._stranded
        self._stranded = []
        for request in late:
            request.num_loads = MAX_LOADS
        return late

    def interrupt(self) -> None:
        """Give the store up if a transfer is open: its orders or reports may be lost.

        What the worker's half was told, and what it has ended, is not known after a step that was
        interrupted. A load could be missing, or a save never end.
        """
        if self._open and not self.store.is_off:
            logger.error(
                "%s had %d open transfers when a step was interrupted, and is switched off",
                self.name, len(self._open),
            )  # fmt: skip
            self.store.switch_off()

    def end_all(self) -> None:
        """End what is open: the worker's half has stopped, and writes to no block any more.

        It has reported what it knew of; what is left was lost on the way.
        """
        for transfer in self._open.values():
            self._open.end(transfer)

    def abandon(self, request: Request) -> None:
        """The request is over: nobody waits for its load any more."""
        self._open.abandon(request)
        self._stranded = [other for other in self._stranded if other is not request]

    def forget_request(self, request: Request) -> None:
        """Tell the store that a request is over."""
        self.store.forget_request(request.request_id)

    def reset(self) -> None:
        """Make the store, and what is on its way from it, forget every content."""
        self.num_resets += 1
        self._open.forget_contents()
        self.store.reset()

    def shutdown(self) -> None:
        """Let the store give everything back."""
        self.store.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _cut(self, cross_blocks: list[CrossGroupBlock]) -> list[CrossGroupBlock]:
        """Return those of the columns to be saved that transfers may hold."""
        room = max(0, self._open.room) // max(1, len(self.kv.specs))
        if len(cross_blocks) > room:
            level = logging.DEBUG if self.num_unsaved else logging.WARNING
            logger.log(level, "%s has its share of the pool: not everything is saved", self.name)
            self.num_unsaved += len(cross_blocks) - room
        return cross_blocks[:room]

    def _begin(self, cross_blocks: Sequence[CrossGroupBlock], *, is_load: bool) -> Transfer:
        if not self._open:
            self._listen()
        return self._open.begin(cross_blocks, is_load=is_load)

    def _listen(self) -> None:
        self._heard_s, self._num_silent_steps = time.monotonic(), 0

    def _is_silent(self, now_s: float) -> bool:
        """Whether something should have ended, long ago."""
        is_long_ago = now_s - self._heard_s >= self.timeout_s
        return bool(self._open) and is_long_ago and self._num_silent_steps >= MIN_SILENT_STEPS

    def _hear(self, transfer: Transfer, has_failed: bool) -> Request | None:
        """A transfer has ended; returns who waited for it."""
        self._listen()
        self.store.finish(transfer.transfer_id, has_failed=has_failed)
        if not has_failed and transfer.is_load and not transfer.is_stale:
            self.num_hits += len(transfer.cross_blocks) * self.kv.block_size
        request = self._open.end(transfer, is_kept=not has_failed)
        if request is not None and has_failed:
            request.num_loads = MAX_LOADS
        return request

    def _end_unsent(self) -> None:
        """The store is off: what the worker's half never heard of has ended, and nobody waits."""
        self._stranded += self._open.call_all()
        for transfer in self._open.unsent():
            self._open.end(transfer)
