"""KV store that keeps nothing, and injects faults into each call of the engine and the worker.

Blocks to save are counted as written after one step, so their transfers are open for that long. No
block is ever found again.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import (
    CrossGroupBlock,
    KVLookup,
    KVStoreScheduler,
    KVStoreWorker,
)
from quire.messages import TransferReport
from quire_faults.injection import injection

ID_BYTES = 8
MORE_THAN_ASKED = 10**6  # blocks that a corrupt lookup claims to have
NO_TRANSFER = 2**40  # an id that no transfer has


class FaultyStore(KVStoreScheduler):
    """The scheduler side."""

    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None:
        del options, plan
        self._orders: list[int] = []

    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> KVLookup:
        """Return that nothing is stored."""
        del request_id, block_hashes
        is_corrupt = injection().reach("kv_store.lookup") == "corrupt"
        return KVLookup(MORE_THAN_ASKED if is_corrupt else 0)

    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Refuse.

        Raises:
            RuntimeError: Nothing was offered, so nothing can be loaded.
        """
        raise RuntimeError(f"transfer {transfer_id} loads {len(cross_blocks)} blocks, none is here")

    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Open a transfer."""
        injection().reach("kv_store.start_save")
        self._orders.append(transfer_id)
        return len(cross_blocks)

    def plan_step(self) -> bytes:
        """Return the ids of the new transfers."""
        injection().reach("kv_store.plan_step")
        orders, self._orders = self._orders, []
        return b"".join(order.to_bytes(ID_BYTES, "big") for order in orders)

    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """Do nothing."""
        del transfer_id, has_failed
        injection().reach("kv_store.finish")

    def reset(self) -> None:
        """Do nothing: nothing is stored."""


class FaultyStoreWorker(KVStoreWorker):
    """The worker side."""

    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None:
        del options, plan
        self._open: list[int] = []

    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: no block is read."""

    def begin_step(self, message: bytes) -> None:
        """Open the transfers of a message."""
        injection().reach("kv_store.begin_step")
        pieces = range(0, len(message), ID_BYTES)
        self._open += [int.from_bytes(message[i : i + ID_BYTES], "big") for i in pieces]

    def report(self) -> TransferReport:
        """Return that all open transfers are done."""
        fault = injection().reach("kv_store.report")
        if fault == "withhold":
            return TransferReport()
        done, self._open = self._open, []
        return TransferReport(done=[NO_TRANSFER] if fault == "corrupt" else done)
