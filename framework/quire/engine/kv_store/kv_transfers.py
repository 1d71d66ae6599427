"""Transfers between the block pool and an external KV store: lookups, loads, saves and timeouts.

A load warms the prefix cache: blocks are allocated from the pool, filled by the store, and freed as
cached blocks. The waiting request is queued again and finds them like any other prefix. If a load
fails or takes too long, the request computes its prefix. A save holds full blocks, which are never
written again, until it has ended.

A block of a transfer returns to the pool only when the worker has reported the transfer, or never
received it. A store that raises, returns invalid results or ends no transfer for too long is
switched off. The plan then stops the worker side, which releases every block; open transfers are
reported as failed or end with that step.

Messages and reports of a step that was interrupted (Ctrl-C) may be lost. So the next plan has them
once more: a worker starts the transfers that it has not received, and repeats its reports. A step
that fails on several workers costs no transfer: all of them have received its messages, and report
the ends of its transfers with later steps.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_store.guarded_store import GuardedStore
from quire.engine.kv_store.load_blocks import allocate_cross_blocks
from quire.engine.kv_store.open_transfers import OpenTransfers, Transfer
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock, KVStoreScheduler
from quire.messages import PlannedTransfers, TransferReport

MAX_LOADS = 2  # per request: blocks that keep being evicted are computed faster than loaded
MIN_SILENT_STEPS = 3  # transfers are reported once per step, and one step may take long

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepTransfers:
    """KV-store part of a plan.

    Attributes:
        planned: The message for the worker side, and the transfers that it starts.
        resent: Those of interrupted steps.
        applied: Id of the last plan whose reports were applied.
        is_stopped: Whether the worker side must shut down.
    """

    planned: PlannedTransfers
    resent: Sequence[PlannedTransfers] = ()
    applied: int = 0
    is_stopped: bool = False


NO_TRANSFERS = StepTransfers(PlannedTransfers(0))


class KVTransfers:
    """Open transfers, and the store that executes them.

    Args:
        store: Scheduler side of the store.
        kv: Cache manager whose blocks are loaded and saved.
        timeout_s: Maximum time, in seconds, for a request to wait for a lookup or a load, and for
            the engine to wait for the end of any transfer.
        name: Name of the store in the log.

    Attributes:
        num_hits: Number of loaded tokens.
        num_unsaved: Number of cross-group blocks not saved because open transfers held the maximum
            number of blocks.
        num_resets: Number of resets; lookup results from before a reset are invalid.
    """

    def __init__(
        self, store: KVStoreScheduler, kv: KVCacheManager, timeout_s: float, name: str
    ) -> None:
        self.store = GuardedStore(store, name, self._end_unsent)
        self.kv = kv
        self.timeout_s = timeout_s
        self.num_hits = self.num_unsaved = self.num_resets = 0
        self._open = OpenTransfers(kv)
        self._cancelled: list[Request] = []  # their loads were cancelled; queued again next step
        self._last_progress_s = 0.0  # time when a transfer ended, or the first one began
        self._num_silent_steps = 0  # steps planned since then
        self._unconfirmed: list[PlannedTransfers] = []  # of plans whose results have not arrived
        self._applied = 0  # id of the last plan whose reports were applied
        self._is_lost = False  # whether what is unconfirmed may not have been received
        self._is_changing = False  # an error now would leave a change of the store unfinished

    @property
    def num_open(self) -> int:
        """Number of transfers that have not ended."""
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is open, or a request with a cancelled load is to be queued again."""
        return bool(self._open or self._cancelled)

    # -- look up, load and save ------------------------------------------------------------------

    def may_have(self, request: Request, num_hit_blocks: int) -> bool:
        """Whether a lookup of the blocks after a local hit can be useful."""
        num_blocks = (len(request.token_ids) - 1) // self.kv.block_size
        return (
            not self.store.is_off and num_blocks > num_hit_blocks and request.num_loads < MAX_LOADS
        )

    def look_up(self, request: Request, num_hit_blocks: int) -> int | None:
        """Return the number of blocks that the store has after a local hit; None: pending."""
        if not self.may_have(request, num_hit_blocks):
            return 0
        hashes = self.kv.hashes_after(request, num_hit_blocks)
        return self.store.lookup(request.request_id, hashes)

    def load(
        self, request: Request, hit: PrefixHit | None, num_offered: int, num_reserved: int
    ) -> bool:
        """Start to load as many blocks after a local hit as fit.

        Args:
            request: Request to load for.
            hit: Its local prefix hit, which stays in the cache.
            num_offered: Number of blocks that the store has after the hit.
            num_reserved: Number of blocks of the pool to leave free.

        Returns:
            Whether a load was started, so that the request must wait.
        """
        if self.store.is_off:
            return False
        room = self._open.room
        cross_blocks = allocate_cross_blocks(self.kv, request, hit, num_offered, room, num_reserved)
        if not cross_blocks:
            return False
        first_block = 0 if hit is None else hit.num_blocks
        self._is_changing = True
        transfer = self._begin(cross_blocks, request, first_block)
        request.num_loads += 1
        self.store.start_load(transfer.transfer_id, cross_blocks)
        if not self.store.is_off:
            self._open.add_waiter(request, transfer, time.monotonic() + self.timeout_s)
        self._is_changing = False
        return not self.store.is_off

    def offer(self, request: Request, fresh: range) -> None:
        """Offer the store the blocks of a request that have become full and computed."""
        if self.store.is_off or not request.is_cacheable:
            return  # blocks that are not cacheable are not hashed
        whole = [
            CrossGroupBlock(request.hashes[index + 1], tuple(t[index] for t in request.block_ids))
            for index in fresh
            if all(index < len(table) and table[index] for table in request.block_ids)
        ]
        if not (cross_blocks := self._limit_to_room(whole)):
            return
        self._is_changing = True
        transfer = self._begin(cross_blocks)
        self.kv.pool.add_references(transfer.block_ids)
        num_new = self.store.start_save(transfer.transfer_id, cross_blocks)
        if not num_new and self._open.find(transfer.transfer_id) is not None:
            self._open.end(transfer)  # if start_save raised, all unsent transfers have ended
        self._is_changing = False

    # -- per step --------------------------------------------------------------------------------

    def plan_step(self, plan_id: int) -> StepTransfers:
        """Return the KV-store part of the next plan."""
        if not self._open:
            return NO_TRANSFERS
        self._num_silent_steps += 1
        self._is_changing = True
        message = self.store.plan_step()
        if self.store.is_off:
            self._is_changing = False
            return StepTransfers(PlannedTransfers(plan_id), is_stopped=True)
        fresh = self._open.pop_unsent()
        loads = [transfer.transfer_id for transfer in fresh if transfer.is_load]
        saves = [transfer.transfer_id for transfer in fresh if not transfer.is_load]
        planned = PlannedTransfers(plan_id, message, loads, saves)
        resent = tuple(self._unconfirmed) if self._is_lost else ()
        self._unconfirmed.append(planned)
        self._is_lost = self._is_changing = False
        return StepTransfers(planned, resent, self._applied)

    def apply_report(self, report: TransferReport) -> list[Request]:
        """End the transfers that a step reported, and return the requests that waited for them."""
        ready = []
        self._is_changing = True
        for has_failed, ids in ((False, report.done), (True, report.failed)):
            for transfer_id in ids:
                transfer = self._open.find(transfer_id)
                if transfer is None:
                    logger.warning("%s reports an unknown transfer; ignored", self.store.name)
                    continue
                request = self._finish_transfer(transfer, has_failed)
                ready += [] if request is None else [request]
        self._is_changing = False
        return ready

    def confirm(self, plan_id: int) -> None:
        """Record that the result of a plan has been applied."""
        self._applied = plan_id
        self._unconfirmed = [each for each in self._unconfirmed if each.plan_id > plan_id]

    def confirm_sent(self) -> None:
        """Record that the steps in flight failed, and all workers have received their transfers.

        The workers go on with them, and report them with later steps.
        """
        self._unconfirmed.clear()
        self._reset_silence()

    def pop_expired(self, now_s: float, num_in_flight: int = 0) -> list[Request]:
        """Return the requests whose load timed out or was cancelled; switch off a silent store.

        The blocks of a timed-out load stay allocated until the transfer ends.

        Args:
            now_s: Current time, on the monotonic clock.
            num_in_flight: Number of planned steps that have reported nothing yet.
        """
        if not self.is_busy:
            return []
        if self._is_silent(now_s, num_in_flight):
            num_open, timeout_s = len(self._open), self.timeout_s
            self.store.switch_off(
                f"has ended none of {num_open} open transfers for {timeout_s:g} s"
            )
        expired = list(self._open.pop_expired(now_s))
        if expired:
            logger.warning(
                "%s did not load within %g s; computing the prefix instead",
                self.store.name,
                self.timeout_s,
            )
        expired += self._cancelled
        self._cancelled = []
        for request in expired:
            request.num_loads = MAX_LOADS
        return expired

    def interrupt(self) -> None:
        """Send what the steps in flight had for the store again: they were interrupted.

        It is unknown what the worker side has received, and which of its reports are lost. A store
        in the middle of a call is switched off; an interrupt comes there only if a first one waits.
        """
        if self._is_changing:
            self._is_changing = False
            self.store.switch_off("was interrupted in the middle of a call")
        self._is_lost = bool(self._unconfirmed)
        self._reset_silence()

    def end_all(self) -> None:
        """End all open transfers: the worker side has stopped and writes to no block any more.

        It has reported the transfers that it received; the rest were lost in between.
        """
        for transfer in self._open.values():
            self._open.end(transfer)

    def remove(self, request: Request) -> None:
        """Remove a finished request from those that wait for a load, and notify the store."""
        self._open.abandon(request)
        self._cancelled = [other for other in self._cancelled if other is not request]
        self.store.forget_request(request.request_id)

    def reset(self) -> None:
        """Make the store drop all contents, and mark open transfers as stale."""
        self.num_resets += 1
        self._open.mark_stale()
        self.store.reset()

    # -- internal --------------------------------------------------------------------------------

    def _limit_to_room(self, cross_blocks: list[CrossGroupBlock]) -> list[CrossGroupBlock]:
        """Return as many of the cross-group blocks as open transfers may still hold."""
        room = max(0, self._open.room) // max(1, len(self.kv.specs))
        if len(cross_blocks) > room:
            level = logging.DEBUG if self.num_unsaved else logging.WARNING
            logger.log(
                level,
                "open transfers of %s hold their maximum of the KV pool; some blocks are not saved",
                self.store.name,
            )
            self.num_unsaved += len(cross_blocks) - room
        return cross_blocks[:room]

    def _begin(
        self,
        cross_blocks: Sequence[CrossGroupBlock],
        source: Request | None = None,
        first_block: int = 0,
    ) -> Transfer:
        if not self._open:
            self._reset_silence()
        return self._open.begin(cross_blocks, source, first_block)

    def _reset_silence(self) -> None:
        self._last_progress_s, self._num_silent_steps = time.monotonic(), 0

    def _is_silent(self, now_s: float, num_in_flight: int) -> bool:
        """Whether transfers are open and none has ended for too long."""
        is_long_ago = now_s - self._last_progress_s >= self.timeout_s
        num_complete = self._num_silent_steps - num_in_flight
        return bool(self._open) and is_long_ago and num_complete >= MIN_SILENT_STEPS

    def _finish_transfer(self, transfer: Transfer, has_failed: bool) -> Request | None:
        """End a reported transfer, and return the request that waited for it."""
        self._reset_silence()
        self.store.finish(transfer.transfer_id, has_failed=has_failed)
        if not has_failed and transfer.is_load and not transfer.is_stale:
            self.num_hits += len(transfer.cross_blocks) * self.kv.block_size
        request = self._open.end(transfer, is_kept=not has_failed)
        if request is not None and has_failed:
            request.num_loads = MAX_LOADS
        return request

    def _end_unsent(self) -> None:
        """End the transfers that the worker side never received, and cancel all waits."""
        self._cancelled += self._open.pop_all_waiters()
        for transfer in self._open.unsent():
            self._open.end(transfer)
