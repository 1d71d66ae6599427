"""Test scene for KV stores: both sides, a small KV cache, and a minimal engine.

The two sides exchange messages only, as if they were in separate processes. The content of a
cross-group block is derived from its hash, so the scene can check what a load brings. Every block
that is in no transfer is poisoned and checked after each step, to detect stray and late writes.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.kv_cache import KVGroup, KVLayer, KVPlan, KVTensor
from quire.interfaces.kv_transfer import (
    CrossGroupBlock,
    KVStoreScheduler,
    KVStoreWorker,
    block_pieces,
    cross_group_block_bytes,
)
from quire.messages import TransferReport
from quire.testing.whole_context import WholeContext

BLOCK_SIZE = 4
NUM_BLOCKS = 97
POISON = 0xA5
MAX_WAIT_S = 20.0  # until a transfer must have ended
PAUSE_S = 0.001


def one_group_plan() -> KVPlan:
    """Return two layers that share a block table, with pages of different sizes."""
    return _plan([["a0", "a1"]], [(("a0",), 96), (("a1",), 160)])


def three_groups_plan() -> KVPlan:
    """Return five layers in three groups that share two tensors; the last group has one layer."""
    groups = [["a0", "a1"], ["b0", "b1"], ["c0"]]
    return _plan(groups, [(("a0", "b0", "c0"), 128), (("a1", "b1"), 128)])


def _plan(groups: list[list[str]], tensors: list[tuple[tuple[str, ...], int]]) -> KVPlan:
    return KVPlan(
        NUM_BLOCKS,
        tuple(_group(index, names) for index, names in enumerate(groups)),
        tuple(KVTensor(NUM_BLOCKS * num_bytes, names) for names, num_bytes in tensors),
        max_model_len=1024,
    )


def _group(index: int, names: list[str]) -> KVGroup:
    params = (("group", index),)
    layers = [KVLayer(name, "scene", 1, 3, params) for name in names]
    specs = tuple(WholeContext(layer, BLOCK_SIZE, "float32") for layer in layers)
    return KVGroup(specs[0], tuple(names), specs)


@dataclass(frozen=True, slots=True)
class SceneTransfer:
    """An open transfer: its end has not been reported to the engine."""

    cross_blocks: tuple[CrossGroupBlock, ...]
    is_load: bool


class StoreScene:
    """A KV store and a KV cache of `NUM_BLOCKS` blocks.

    Attributes:
        open: Transfers that have not ended, by id.
        done: Ids of the transfers that succeeded.
        failed: Ids of the transfers that failed.
    """

    def __init__(
        self,
        scheduler_class: type[KVStoreScheduler],
        worker_class: type[KVStoreWorker],
        options: Mapping[str, str],
        plan: KVPlan,
        seed: int = 0,
    ) -> None:
        self.plan = plan
        self.cross_group_block_bytes = cross_group_block_bytes(plan)
        self.scheduler = scheduler_class(dict(options), plan)
        self.worker = worker_class(dict(options), plan)
        self.tensors = [
            torch.full((plan.num_blocks, plan.page_bytes(t)), POISON, dtype=torch.uint8)
            for t in plan.tensors
        ]
        self.worker.attach(self.tensors)
        self.open: dict[int, SceneTransfer] = {}
        self.done: list[int] = []
        self.failed: list[int] = []
        self._pieces = block_pieces(plan)
        self._free = list(range(1, plan.num_blocks))
        random.Random(seed).shuffle(self._free)
        self._last_id = 0

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that are in no transfer."""
        return len(self._free)

    def lookup(self, block_hashes: Sequence[bytes]) -> int:
        """Look up hashes, stepping while that is pending; return the number of blocks found."""
        deadline = time.monotonic() + MAX_WAIT_S
        while time.monotonic() < deadline:
            result = self.scheduler.lookup("request", block_hashes)
            assert 0 <= result.num_blocks <= len(block_hashes), (
                f"lookup of {len(block_hashes)} hashes returned {result}"
            )
            if not result.is_pending:
                return result.num_blocks
            self.step()
            time.sleep(PAUSE_S)
        raise AssertionError(f"a lookup is still pending after {MAX_WAIT_S:g} s")

    def start_save(self, block_hashes: Sequence[bytes], *, null_group: int | None = None) -> int:
        """Compute cross-group blocks and offer them; return how many will be written.

        Args:
            block_hashes: Hashes of the cross-group blocks.
            null_group: KV group in which they have the null block; None for complete ones.
        """
        cross_blocks = tuple(self._cross_block(name, null_group) for name in block_hashes)
        for cross_block in cross_blocks:
            self._write(cross_block, content(cross_block.block_hash, self.cross_group_block_bytes))
        transfer_id = self._start(SceneTransfer(cross_blocks, is_load=False))
        num_written = self.scheduler.start_save(transfer_id, cross_blocks)
        assert 0 <= num_written <= len(cross_blocks), (
            f"start_save of {len(cross_blocks)} blocks returned {num_written}"
        )
        if not num_written:
            self._free_blocks(self.open.pop(transfer_id))
        return num_written

    def start_load(self, block_hashes: Sequence[bytes], *, null_group: int | None = None) -> int:
        """Start a load of cross-group blocks that were looked up; return the id of the transfer."""
        cross_blocks = tuple(self._cross_block(name, null_group) for name in block_hashes)
        transfer_id = self._start(SceneTransfer(cross_blocks, is_load=True))
        self.scheduler.start_load(transfer_id, cross_blocks)
        return transfer_id

    def step(self) -> TransferReport:
        """Run a step of the worker side, and apply its report on the scheduler side."""
        message = self.scheduler.plan_step()
        assert type(message) is bytes, f"plan_step must return bytes, got {type(message)}"
        self.worker.begin_step(message)
        report = self.worker.report()
        for transfer_id in (*report.done, *report.failed):
            assert transfer_id in self.open, (
                f"the worker side reported transfer {transfer_id}, which is not open"
            )
            self.end(transfer_id, has_failed=transfer_id in report.failed)
        self.check_blocks()
        return report

    def finish_transfers(self) -> None:
        """Step until every transfer has ended."""
        deadline = time.monotonic() + MAX_WAIT_S
        while self.open:
            assert time.monotonic() < deadline, (
                f"transfers {sorted(self.open)} have not ended after {MAX_WAIT_S:g} s"
            )
            report = self.step()
            if not (report.done or report.failed):
                time.sleep(PAUSE_S)

    def end(self, transfer_id: int, *, has_failed: bool) -> None:
        """End a transfer on the scheduler side, and check the bytes that it loaded."""
        transfer = self.open.pop(transfer_id)
        (self.failed if has_failed else self.done).append(transfer_id)
        if transfer.is_load and not has_failed:
            for cross_block in transfer.cross_blocks:
                self._check_cross_block(
                    cross_block, "a load brought bytes that differ from the saved ones"
                )
        self._free_blocks(transfer)
        self.scheduler.finish(transfer_id, has_failed=has_failed)

    def save(self, block_hashes: Sequence[bytes]) -> int:
        """Save cross-group blocks and wait; return how many were written."""
        num_written = self.start_save(block_hashes)
        self.finish_transfers()
        return num_written

    def load(self, block_hashes: Sequence[bytes]) -> bool:
        """Load cross-group blocks and wait; return whether the load succeeded."""
        transfer_id = self.start_load(block_hashes)
        self.finish_transfers()
        return transfer_id in self.done

    def check_blocks(self) -> None:
        """Check that free blocks, the null block and blocks being saved were not written to."""
        untouchable = torch.tensor([0, *self._free])
        for tensor in self.tensors:
            is_clean = (tensor[untouchable] == POISON).all(dim=1)
            assert bool(is_clean.all()), (
                f"blocks {untouchable[~is_clean].tolist()} are in no transfer, but were written to"
            )
        for transfer in self.open.values():
            for cross_block in () if transfer.is_load else transfer.cross_blocks:
                self._check_cross_block(
                    cross_block, "a block was written to while it was being saved"
                )

    def shutdown(self) -> None:
        """Shut down both sides."""
        self.scheduler.shutdown()
        self.worker.shutdown()

    def _start(self, transfer: SceneTransfer) -> int:
        self._last_id += 1
        self.open[self._last_id] = transfer
        return self._last_id

    def _cross_block(self, block_hash: bytes, null_group: int | None) -> CrossGroupBlock:
        groups = range(len(self.plan.groups))
        return CrossGroupBlock(
            block_hash, tuple(0 if g == null_group else self._free.pop() for g in groups)
        )

    def _rows(self, cross_block: CrossGroupBlock) -> list[tuple[Tensor, int]]:
        """Return each piece of a cross-group block in the cache, with its offset in the content."""
        return [
            (self.tensors[piece.tensor][cross_block.block_ids[piece.group]], piece.offset)
            for piece in self._pieces
            if cross_block.block_ids[piece.group]
        ]

    def _write(self, cross_block: CrossGroupBlock, data: Tensor) -> None:
        for row, offset in self._rows(cross_block):
            row.copy_(data[offset : offset + row.numel()])

    def _check_cross_block(self, cross_block: CrossGroupBlock, message: str) -> None:
        data = content(cross_block.block_hash, self.cross_group_block_bytes)
        for row, offset in self._rows(cross_block):
            assert torch.equal(row, data[offset : offset + row.numel()]), message

    def _free_blocks(self, transfer: SceneTransfer) -> None:
        for cross_block in transfer.cross_blocks:
            for row, _ in self._rows(cross_block):
                row.fill_(POISON)
            self._free[:0] = [block_id for block_id in cross_block.block_ids if block_id]


def content(block_hash: bytes, num_bytes: int) -> Tensor:  # [num_bytes] uint8
    """Return the content of the cross-group block with this hash."""
    return torch.frombuffer(
        bytearray(hashlib.shake_128(block_hash).digest(num_bytes)), dtype=torch.uint8
    )


def chain(name: str, length: int) -> list[bytes]:
    """Return the block hashes of a prompt; prompts with different names share none."""
    return [hashlib.blake2b(f"{name} {i}".encode(), digest_size=32).digest() for i in range(length)]
