"""An outside KV store that keeps what it is given, and has moods: slow, hung, failing, raising."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kv_memory import KVMemory

from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import (
    CrossGroupBlock,
    KVLookup,
    KVStoreScheduler,
    KVStoreWorker,
)
from quire.messages import StepPlan, TransferReport
from quire.worker.kv_store_host import KVStoreHost

Content = tuple[list[tuple[int, list[int]]], list[int]]  # of each group: the cells, the epoch


NEVER = 10**9  # a latency: what begins with it does not end


@dataclass
class Moods:
    """How the store behaves from now on.

    Attributes:
        latency: Steps that a transfer takes which begins now.
        raising: Methods of the scheduler side that raise.
        is_dead: The worker side is switched off: what is open has failed, and all that comes.
    """

    is_pending: bool = False
    latency: int = 0
    fails: bool = False
    is_dead: bool = False
    raising: set[str] = field(default_factory=set)


class FickleStore(KVStoreScheduler):
    """The scheduler side."""

    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None:
        del options, plan
        self.moods = Moods()
        self.stored: dict[bytes, Content] = {}
        self.num_skipped = 0
        self.num_written = 0
        self.open_saves: dict[int, list[bytes]] = {}
        self.stale: set[int] = set()
        self._loads: set[int] = set()
        self._orders: list[tuple[int, bool, list[tuple[bytes, tuple[int, ...]]]]] = []

    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> KVLookup:
        self._may_raise("lookup")
        if self.moods.is_pending:
            return KVLookup(is_pending=True)
        missing = (i for i, name in enumerate(block_hashes) if name not in self.stored)
        return KVLookup(next(missing, len(block_hashes)))

    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        self._may_raise("start_load")
        if not all(cross_block.block_hash in self.stored for cross_block in cross_blocks):
            raise AssertionError("the engine loads what it was not offered")
        self._loads.add(transfer_id)
        self._order(transfer_id, True, cross_blocks)

    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        self._may_raise("start_save")
        on_their_way = {name for names in self.open_saves.values() for name in names}
        new = [c for c in cross_blocks if c.block_hash not in self.stored.keys() | on_their_way]
        self.num_skipped += len(cross_blocks) - len(new)
        self.num_written += len(new)
        if new:
            self.open_saves[transfer_id] = [cross_block.block_hash for cross_block in new]
            self._order(transfer_id, False, new)
        return len(new)

    def plan_step(self) -> bytes:
        self._may_raise("plan_step")
        orders, self._orders = self._orders, []
        return msgspec.msgpack.encode(orders) if orders else b""

    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        self._may_raise("finish")
        self.open_saves.pop(transfer_id, None)
        self._loads.discard(transfer_id)

    def reset(self) -> None:
        self._may_raise("reset")
        self.stored.clear()
        self.stale |= self.open_saves.keys()

    def _order(
        self, transfer_id: int, is_load: bool, cross_blocks: Sequence[CrossGroupBlock]
    ) -> None:
        self._orders.append(
            (transfer_id, is_load, [(c.block_hash, c.block_ids) for c in cross_blocks])
        )

    def _may_raise(self, method: str) -> None:
        if method in self.moods.raising:
            raise OSError(f"{method}: the store has gone")


@dataclass
class _Open:
    is_load: bool
    cross_blocks: list[tuple[bytes, tuple[int, ...]]]
    contents: list[Content | None]
    steps_left: int


class FickleStoreWorker(KVStoreWorker):
    """The worker side.

    Args:
        store: The scheduler side; what is stored is kept there.
        memory: Under the blocks.
    """

    def __init__(self, store: FickleStore, memory: KVMemory) -> None:
        self.store = store
        self.memory = memory
        self.open: dict[int, _Open] = {}
        self.seen: set[int] = set()
        self.is_stopped = False

    def attach(self, tensors: Sequence[Any]) -> None:
        raise NotImplementedError

    def begin_step(self, message: bytes) -> None:
        for transfer_id, is_load, cross_blocks in orders_of(message):
            if transfer_id in self.seen:
                raise AssertionError("the worker side receives a transfer twice")
            self.seen.add(transfer_id)
            pairs = [(name, tuple(blocks)) for name, blocks in cross_blocks]
            contents = [self.store.stored.get(name) for name, _ in pairs] if is_load else []
            self.open[transfer_id] = _Open(is_load, pairs, contents, self.store.moods.latency)

    def report(self) -> TransferReport:
        done, failed = [], []
        for transfer_id, transfer in list(self.open.items()):
            if transfer.steps_left and not self.store.moods.is_dead:
                transfer.steps_left -= 1
                continue
            del self.open[transfer_id]
            (done if self._move(transfer_id, transfer) else failed).append(transfer_id)
        return TransferReport(done, failed)

    def shutdown(self) -> None:
        self.is_stopped = True
        for transfer in self.open.values():
            for _, blocks in transfer.cross_blocks if transfer.is_load else ():
                self.memory.spoil(blocks)
        self.open.clear()

    def _move(self, transfer_id: int, transfer: _Open) -> bool:
        if transfer.is_load:
            return self._load(transfer)
        return self._save(transfer_id, transfer)

    def _load(self, transfer: _Open) -> bool:
        moods, contents = self.store.moods, transfer.contents
        has_failed = moods.fails or moods.is_dead or None in contents
        for (_, blocks), content in zip(transfer.cross_blocks, contents, strict=False):
            if has_failed or content is None:
                self.memory.spoil(blocks)
                continue
            for block, cells, epoch in zip(blocks, *content, strict=True):
                if block:
                    self.memory.cells[block] = (cells[0], list(cells[1]))
                    self.memory.epochs[block] = epoch
        return not has_failed

    def _save(self, transfer_id: int, transfer: _Open) -> bool:
        if self.store.moods.fails or self.store.moods.is_dead:
            return False
        for name, blocks in transfer.cross_blocks:
            for group, block in enumerate(blocks):
                if self.memory.name_of(block) != (group, name):
                    raise AssertionError(f"block {block} changed while it was saved")
            if transfer_id not in self.store.stale:
                cells = [(g, list(c)) for g, c in (self.memory.cells[block] for block in blocks)]
                self.store.stored[name] = (cells, [self.memory.epochs[b] for b in blocks])
        return True


class FickleHost(KVStoreHost):
    """The host of the worker side, which looks at each plan."""

    def __init__(self, store: FickleStore, memory: KVMemory) -> None:
        self.worker_side = FickleStoreWorker(store, memory)
        super().__init__(self.worker_side, [], "fickle")

    def begin_step(self, plan: StepPlan) -> None:
        if not {order[0] for order in orders_of(plan.kv_transfers)} <= {
            *plan.kv_loads,
            *plan.kv_saves,
        }:
            raise AssertionError("the worker side receives a transfer that the engine has ended")
        super().begin_step(plan)


def orders_of(message: bytes) -> list[tuple[int, bool, list[tuple[bytes, tuple[int, ...]]]]]:
    """Return the orders in a message: a transfer each."""
    orders: list[tuple[int, bool, list[tuple[bytes, tuple[int, ...]]]]]
    orders = msgspec.msgpack.decode(message or b"\x90")
    return orders
