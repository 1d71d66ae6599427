"""Worker side of the host-memory tier: copies between slots and KV blocks.

It has no index of its own and executes the orders of the scheduler side: loads first, because a
request waits for them, and a bounded number of bytes per step, so that other requests do not wait
long. A load of damaged bytes fails.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import KVStoreWorker, block_pieces, cross_group_block_bytes
from quire.messages import TransferReport
from quire_kv_stores.block_copies import BlockCopies
from quire_kv_stores.orders import BlockMove, TransferOrder, decode
from quire_kv_stores.slot_pool import SlotPool
from quire_kv_stores.store_options import read_options

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Transfer:
    """An open transfer."""

    transfer_id: int
    is_load: bool
    waiting: deque[BlockMove]
    num_moving: int = 0  # copies that were started and are not known to be complete
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.num_moving


@dataclass(slots=True)
class _Batch:
    """The copies of one step."""

    moves: list[tuple[_Transfer, BlockMove]] = field(default_factory=list)
    event: torch.cuda.Event | None = None  # None: they are complete

    @property
    def is_over(self) -> bool:
        if self.event is None:
            return True
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # torch has no types there


class HostMemory(KVStoreWorker):
    """Slots of host memory, and the copies to and from them.

    Attributes:
        saved_bytes: Number of bytes written to slots so far.
        loaded_bytes: Number of bytes read from slots so far.
    """

    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None:
        chosen = read_options(options)
        self.saved_bytes = self.loaded_bytes = 0
        self.cross_group_block_bytes = cross_group_block_bytes(plan)
        self.pool: SlotPool | None = None
        self._pieces = block_pieces(plan)
        self._num_slots = chosen.num_slots(plan)
        self._step_bytes = chosen.step_bytes
        self._copies: BlockCopies | None = None
        self._has_reported_memory = False  # whether a lack of memory was logged
        self._loads: deque[_Transfer] = deque()
        self._saves: deque[_Transfer] = deque()
        self._batches: deque[_Batch] = deque()
        self._ended: list[_Transfer] = []

    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Set the tensors of the KV cache; slots are allocated at their first use."""
        is_pinned = any(tensor.device.type == "cuda" for tensor in tensors)
        self._copies = BlockCopies(self._pieces, tensors)
        self.pool = SlotPool(
            self._num_slots, max(1, self.cross_group_block_bytes), is_pinned=is_pinned
        )

    def begin_step(self, message: bytes) -> None:
        """Queue the orders, and start the copies of one step."""
        orders = decode(message)
        self._loads += [_transfer(order, is_load=True) for order in orders.loads]
        self._saves += [_transfer(order, is_load=False) for order in orders.saves]
        self._ended += [_Transfer(i, True, deque(), has_failed=True) for i in orders.lost]
        if self._loads or self._saves:
            self._batches.append(self._move())

    def report(self) -> TransferReport:
        """Report the ended transfers, after checksums of the saved blocks are recorded."""
        while self._batches and self._batches[0].is_over:
            self._finish_batch(self._batches.popleft())
        ended, self._ended = self._ended, []
        return TransferReport(
            done=[t.transfer_id for t in ended if not t.has_failed],
            failed=[t.transfer_id for t in ended if t.has_failed],
        )

    def shutdown(self) -> None:
        """Wait for the started copies, and free the memory."""
        if self._copies is not None:
            self._copies.wait()
        if self.pool is not None:
            self.pool.clear()
        self.pool = self._copies = None

    def _ready(self) -> tuple[SlotPool, BlockCopies]:
        if self.pool is None or self._copies is None:
            raise RuntimeError("host_memory: no KV cache is attached, or the store was shut down")
        return self.pool, self._copies

    def _move(self) -> _Batch:
        """Start copies up to the limit of bytes per step."""
        _, copies = self._ready()
        batch = _Batch()
        num_bytes = 0
        with copies.batch():
            while (transfer := self._next()) and (
                not num_bytes or num_bytes + self.cross_group_block_bytes <= self._step_bytes
            ):
                num_bytes += self.cross_group_block_bytes
                self._begin(transfer, transfer.waiting.popleft(), batch)
        batch.event = copies.mark()
        return batch

    def _next(self) -> _Transfer | None:
        """Return the next transfer with waiting moves, loads before saves."""
        for queue in (self._loads, self._saves):
            while queue and not queue[0].waiting:
                queue.popleft()
            if queue:
                return queue[0]
        return None

    def _begin(self, transfer: _Transfer, move: BlockMove, batch: _Batch) -> None:
        is_begun = self._load(move) if transfer.is_load else self._save(move)
        if is_begun:
            transfer.num_moving += 1
            batch.moves.append((transfer, move))
            return
        transfer.has_failed = True
        transfer.waiting.clear()
        if transfer.is_over:
            self._ended.append(transfer)

    def _load(self, move: BlockMove) -> bool:
        """Copy a slot to its blocks, if its content is intact."""
        pool, copies = self._ready()
        if not pool.is_intact(move.slot, move.block_hash):
            logger.error(
                "host_memory: block %s in slot %d is damaged (wrong checksum); the load fails and "
                "its tokens are computed again",
                move.block_hash.hex()[:16], move.slot,
            )  # fmt: skip
            return False
        copies.load(pool.slot(move.slot), move.block_ids)
        self.loaded_bytes += self.cross_group_block_bytes
        return True

    def _save(self, move: BlockMove) -> bool:
        """Copy blocks to a slot, if there is memory for it."""
        pool, copies = self._ready()
        try:
            slot = pool.slot(move.slot)
        except CapacityError as error:
            logger.log(logging.DEBUG if self._has_reported_memory else logging.ERROR, "%s", error)
            self._has_reported_memory = True
            return False
        pool.drop_checksum(move.slot)
        copies.save(move.block_ids, slot)
        self.saved_bytes += self.cross_group_block_bytes
        return True

    def _finish_batch(self, batch: _Batch) -> None:
        """Record the checksums of a completed batch of copies, and end its transfers."""
        pool, _ = self._ready()
        for transfer, move in batch.moves:
            if not transfer.is_load:
                pool.record_checksum(move.slot, move.block_hash)
            transfer.num_moving -= 1
            if transfer.is_over:
                self._ended.append(transfer)


def _transfer(order: TransferOrder, *, is_load: bool) -> _Transfer:
    return _Transfer(order.transfer_id, is_load, deque(order.moves))
