"""The worker's half of the host-memory tier: it moves bytes between slots and blocks.

It knows nothing of what is stored, and does what it is told: loads first, because a request waits
for them; a bounded number of bytes a step, so that no other request waits for long. What a load
finds damaged is never handed out: that transfer fails.
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
    """A transfer that has not ended."""

    transfer_id: int
    is_load: bool
    waiting: deque[BlockMove]
    num_moving: int = 0  # copies that were begun and are not known to be over
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.num_moving


@dataclass(slots=True)
class _Batch:
    """The copies of one step."""

    moves: list[tuple[_Transfer, BlockMove]] = field(default_factory=list)
    event: torch.cuda.Event | None = None  # None: they are over

    @property
    def is_over(self) -> bool:
        if self.event is None:
            return True
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # torch has no types there


class HostMemory(KVStoreWorker):
    """Slots of host memory, and the copies to and from them.

    Attributes:
        saved_bytes: Written into slots so far.
        loaded_bytes: Read from slots so far.
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
        self._is_short = False  # of memory, and said so
        self._loads: deque[_Transfer] = deque()
        self._saves: deque[_Transfer] = deque()
        self._batches: deque[_Batch] = deque()
        self._ended: list[_Transfer] = []

    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Learn where the blocks lie; slots are allocated when they are used."""
        is_pinned = any(tensor.device.type == "cuda" for tensor in tensors)
        self._copies = BlockCopies(self._pieces, tensors)
        self.pool = SlotPool(
            self._num_slots, max(1, self.cross_group_block_bytes), is_pinned=is_pinned
        )

    def begin_step(self, message: bytes) -> None:
        """Take the orders in, and move as much as one step may."""
        orders = decode(message)
        self._loads += [_transfer(order, is_load=True) for order in orders.loads]
        self._saves += [_transfer(order, is_load=False) for order in orders.saves]
        self._ended += [_Transfer(i, True, deque(), has_failed=True) for i in orders.lost]
        if self._loads or self._saves:
            self._batches.append(self._move())

    def report(self) -> TransferReport:
        """Say what is over; what was saved is sealed first."""
        while self._batches and self._batches[0].is_over:
            self._settle(self._batches.popleft())
        ended, self._ended = self._ended, []
        return TransferReport(
            done=[t.transfer_id for t in ended if not t.has_failed],
            failed=[t.transfer_id for t in ended if t.has_failed],
        )

    def shutdown(self) -> None:
        """Finish the copies that were begun, and give the memory back."""
        if self._copies is not None:
            self._copies.wait()
        if self.pool is not None:
            self.pool.clear()
        self.pool = self._copies = None

    def _ready(self) -> tuple[SlotPool, BlockCopies]:
        if self.pool is None or self._copies is None:
            raise RuntimeError("host_memory: no cache is attached, or it was shut down")
        return self.pool, self._copies

    def _move(self) -> _Batch:
        """Begin copies until the step has its share."""
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
        """Return the transfer whose turn it is, loads before saves."""
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
        """Copy a column to its blocks, if it is what was saved."""
        pool, copies = self._ready()
        if not pool.is_sound(move.slot, move.block_hash):
            logger.error(
                "host_memory: column %s in slot %d is not what was saved",
                move.block_hash.hex()[:16], move.slot,
            )  # fmt: skip
            return False
        copies.load(pool.slot(move.slot), move.block_ids)
        self.loaded_bytes += self.cross_group_block_bytes
        return True

    def _save(self, move: BlockMove) -> bool:
        """Copy a column from its blocks, if there is memory for it."""
        pool, copies = self._ready()
        try:
            slot = pool.slot(move.slot)
        except CapacityError as error:
            logger.log(logging.DEBUG if self._is_short else logging.ERROR, "%s", error)
            self._is_short = True
            return False
        pool.break_seal(move.slot)
        copies.save(move.block_ids, slot)
        self.saved_bytes += self.cross_group_block_bytes
        return True

    def _settle(self, batch: _Batch) -> None:
        """The copies of a batch are over: seal what was saved, and end transfers."""
        pool, _ = self._ready()
        for transfer, move in batch.moves:
            if not transfer.is_load:
                pool.seal(move.slot, move.block_hash)
            transfer.num_moving -= 1
            if transfer.is_over:
                self._ended.append(transfer)


def _transfer(order: TransferOrder, *, is_load: bool) -> _Transfer:
    return _Transfer(order.transfer_id, is_load, deque(order.moves))
