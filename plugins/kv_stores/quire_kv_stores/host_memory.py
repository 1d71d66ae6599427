"""Scheduler side of the host-memory tier: the index of stored blocks and their slots.

It moves no bytes and never waits. A block is found once the worker side has reported it as written.
A block that does not fit is not stored, which is no error.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import (
    CrossGroupBlock,
    KVLookup,
    KVStoreScheduler,
    cross_group_block_bytes,
)
from quire_kv_stores.block_index import BlockIndex, StoredBlock
from quire_kv_stores.orders import BlockMove, StepOrders, TransferOrder, encode
from quire_kv_stores.store_options import read_options

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Save:
    """An open save, and counts of the offered blocks that it does not write."""

    cross_blocks: tuple[StoredBlock, ...]
    num_offered: int
    num_known: int  # already stored or being stored
    num_partial: int  # incomplete: the null block in some KV group


@dataclass(slots=True)
class StoreCounts:
    """Statistics of one device, in bytes and blocks."""

    saved_bytes: int = 0
    loaded_bytes: int = 0
    num_known: int = 0  # offered, but already stored
    num_skipped: int = 0  # offered while all slots were in transfers
    num_failed: int = 0  # transfers


class HostMemoryScheduler(KVStoreScheduler):
    """Store of cross-group blocks in host memory, addressed by content and bounded in bytes."""

    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None:
        chosen = read_options(options)
        self.counts = StoreCounts()
        self.index = BlockIndex(chosen.num_slots(plan))
        self.cross_group_block_bytes = cross_group_block_bytes(plan)
        self._block_size = plan.block_size
        self._loads: dict[int, tuple[StoredBlock, ...]] = {}  # none where one was evicted
        self._saves: dict[int, _Save] = {}
        self._orders = StepOrders()
        logger.info(
            "host_memory: capacity for %s tokens (%s blocks of %s bytes)",
            f"{self.index.num_slots * plan.block_size:,}",
            f"{self.index.num_slots:,}",
            f"{self.cross_group_block_bytes:,}",
        )

    @classmethod
    def check_options(cls, options: Mapping[str, str], plan: KVPlan | None = None) -> None:
        """Check the options and, given a plan, that one of its blocks fits."""
        chosen = read_options(options)
        if plan is not None:
            chosen.num_slots(plan)

    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> KVLookup:
        """Count stored blocks up to the first gap, and make them the most recently used."""
        del request_id
        num_blocks = 0
        while num_blocks < len(block_hashes) and self.index.find(block_hashes[num_blocks]):
            num_blocks += 1
        self.index.touch(block_hashes[:num_blocks])
        return KVLookup(num_blocks)

    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Order the copies; a block evicted since the lookup makes the transfer fail.

        Raises:
            ValueError: The transfer is open already, or empty.
        """
        self._check_new(transfer_id)
        if not cross_blocks:
            raise ValueError(f"host_memory: load {transfer_id} has no blocks")
        found = [self.index.find(cross_block.block_hash) for cross_block in cross_blocks]
        stored = tuple(cross_block for cross_block in found if cross_block is not None)
        if len(stored) < len(cross_blocks):
            logger.info(
                "host_memory: load %d fails: a block was evicted after the lookup; its tokens are "
                "computed again",
                transfer_id,
            )
            self._loads[transfer_id] = ()
            self._orders.lost.append(transfer_id)
            return
        self.index.begin_reading(stored)
        self._loads[transfer_id] = stored
        self._orders.loads.append(_order(transfer_id, stored, cross_blocks))

    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Order the copies of new blocks that fit; the rest is skipped.

        Raises:
            ValueError: The transfer is open already.
        """
        self._check_new(transfer_id)
        self.index.touch([cross_block.block_hash for cross_block in cross_blocks])
        whole = [cross_block for cross_block in cross_blocks if all(cross_block.block_ids)]
        new = list(self._new(whole))
        claimed = self._claim(new)
        save = _Save(
            tuple(claimed), len(cross_blocks), len(whole) - len(new), len(cross_blocks) - len(whole)
        )
        self.counts.num_known += save.num_known
        self.counts.num_skipped += len(new) - len(claimed)
        if not claimed:
            self._log_save(transfer_id, save)
            return 0
        self._saves[transfer_id] = save
        self._orders.saves.append(_order(transfer_id, claimed, new))
        return len(claimed)

    def plan_step(self) -> bytes:
        """Return the orders since the last call."""
        orders, self._orders = self._orders, StepOrders()
        return encode(orders)

    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """Mark saved blocks as stored; remove blocks whose load failed.

        Raises:
            ValueError: The transfer is not open.
        """
        if transfer_id in self._loads:
            self._finish_load(transfer_id, self._loads.pop(transfer_id), has_failed)
        elif transfer_id in self._saves:
            self._finish_save(transfer_id, self._saves.pop(transfer_id), has_failed)
        else:
            raise ValueError(f"host_memory: transfer {transfer_id} is not open")

    def reset(self) -> None:
        """Remove all content."""
        self.index.forget_all()

    def _finish_load(
        self, transfer_id: int, cross_blocks: tuple[StoredBlock, ...], has_failed: bool
    ) -> None:
        if has_failed:
            self.counts.num_failed += 1
            self.index.forget(cross_blocks)
        else:
            self.counts.loaded_bytes += len(cross_blocks) * self.cross_group_block_bytes
        self.index.end_reading(cross_blocks)
        num_tokens = len(cross_blocks) * self._block_size
        end = "failed" if has_failed else "done"
        logger.debug("host_memory: load %d: %d tokens, %s", transfer_id, num_tokens, end)

    def _finish_save(self, transfer_id: int, save: _Save, has_failed: bool) -> None:
        if has_failed:
            self.counts.num_failed += 1
            self.index.retire(save.cross_blocks)
            level = logging.WARNING if self.counts.num_failed == 1 else logging.DEBUG
            logger.log(level, "host_memory: save %d failed; its blocks are not stored", transfer_id)
            return
        self.counts.saved_bytes += len(save.cross_blocks) * self.cross_group_block_bytes
        self.index.end_writing(save.cross_blocks)
        self._log_save(transfer_id, save)

    def _check_new(self, transfer_id: int) -> None:
        """Check that no open transfer has this id.

        Raises:
            ValueError: An open transfer has this id.
        """
        if transfer_id in self._loads or transfer_id in self._saves:
            raise ValueError(f"host_memory: transfer {transfer_id} is open already")

    def _new(self, cross_blocks: Sequence[CrossGroupBlock]) -> Iterator[CrossGroupBlock]:
        """Yield the blocks that are neither stored nor being stored, each hash once."""
        seen = set()
        for cross_block in cross_blocks:
            if cross_block.block_hash not in self.index and cross_block.block_hash not in seen:
                seen.add(cross_block.block_hash)
                yield cross_block

    def _claim(self, cross_blocks: Sequence[CrossGroupBlock]) -> list[StoredBlock]:
        """Allocate slots up to the first block without one: a lookup stops at that gap."""
        claimed: list[StoredBlock] = []
        for cross_block in cross_blocks:
            slot = self.index.claim(cross_block.block_hash)
            if slot is None:
                break
            claimed.append(slot)
        return claimed

    def _log_save(self, transfer_id: int, save: _Save) -> None:
        """Log how many of the offered tokens were written; at debug level if none was stored."""
        size, num_written = self._block_size, len(save.cross_blocks)
        num_skipped = save.num_offered - save.num_known - save.num_partial - num_written
        logger.log(
            logging.INFO if save.num_known else logging.DEBUG,
            "host_memory: save %d: %d tokens, %d already stored, %d written%s%s",
            transfer_id, save.num_offered * size, save.num_known * size, num_written * size,
            f", {save.num_partial * size} incomplete" if save.num_partial else "",
            f", {num_skipped * size} skipped for lack of space" if num_skipped else "",
        )  # fmt: skip


def _order(
    transfer_id: int, stored: Sequence[StoredBlock], blocks: Sequence[CrossGroupBlock]
) -> TransferOrder:
    """Return the order that pairs slots with blocks; there may be more blocks than slots."""
    pairs = zip(stored, blocks, strict=False)
    moves = [
        BlockMove(cross_block.slot, cross_block.block_hash, list(block.block_ids))
        for cross_block, block in pairs
    ]
    return TransferOrder(transfer_id, moves)
