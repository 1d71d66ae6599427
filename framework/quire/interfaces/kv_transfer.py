"""The interface of KV stores outside the pool: host memory, disks, other machines.

A store has two sides. The scheduler side tracks which content is stored; the worker side moves
bytes. Messages from the first to the second travel in the step's plan and are opaque to the engine.

    lookup          return the number of stored blocks beyond the local hit, or "not known yet"
    start_load      load stored blocks into these blocks, which the engine has allocated
    start_save      save these full and computed blocks, except those that are stored already
    plan_step       return the message to the worker side for the next step
    finish          handle the end of a transfer, successful or failed

The engine holds every block of a transfer until it has ended. If a load fails or takes longer than
`kv_store_timeout_s`, the request's tokens are computed instead. If a request is aborted, its
transfer still runs to its end. Open transfers may hold only a limited part of the pool: a load may
be shortened, and blocks that cannot be saved at the moment are not passed to `start_save`.

A store is switched off for good if it raises, returns an invalid result, or ends none of its open
transfers within `kv_store_timeout_s`: it is not called again, its worker side is shut down, and its
open transfers have failed. When a step is interrupted (Ctrl-C), or fails on some of several
workers, each worker still gets every message once, and transfers go on: `begin_step` may then be
called several times before the next `report`. An interrupt waits for the end of a call of the
store. A second one does not, and the store is switched off.

The unit of transfer is the cross-group block: the blocks of one table index in every KV group of
the model, stored and loaded together under the hash of their content. Hashes are chained: an equal
hash means equal tokens including the whole prefix, and the same model, adapter and salt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.interfaces.reference import check_reference

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVPlan
    from quire.messages import TransferReport


@dataclass(frozen=True, slots=True)
class KVLookup:
    """Result of a lookup for a prompt.

    Attributes:
        num_blocks: Number of stored cross-group blocks beyond the local hit, without a gap.
        is_pending: True if the result is not known yet. The engine repeats the lookup, and computes
            the tokens itself after `kv_store_timeout_s`.
    """

    num_blocks: int = 0
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class CrossGroupBlock:
    """The blocks of one table index of a request in all KV groups, and their content hash.

    Attributes:
        block_hash: Hash of the content.
        block_ids: Block id in each KV group; 0, the null block, where the group does not need it.
            A cross-group block with a null block is incomplete and is not saved. When it is loaded,
            only its other blocks are: a sliding-window group has block ids only where the prefix
            hit after the load needs them.
    """

    block_hash: bytes
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """The part of a cross-group block that one KV group has in one tensor of the plan.

    Attributes:
        group: Index of the KV group, as in `CrossGroupBlock.block_ids`.
        tensor: Index of the tensor; the piece is its row `block_ids[group]`.
        offset: Offset of its first byte when all pieces of a cross-group block are concatenated.
        num_bytes: Bytes of one row of the tensor.
    """

    group: int
    tensor: int
    offset: int
    num_bytes: int


def block_pieces(plan: KVPlan) -> tuple[BlockPiece, ...]:
    """Return the pieces of a cross-group block in the order of their offsets.

    A tensor that several groups share has a piece for each of them. A group without a layer in a
    tensor has no piece there.
    """
    pieces: list[BlockPiece] = []
    offset = 0
    for group_index, group in enumerate(plan.groups):
        for tensor_index, tensor in enumerate(plan.tensors):
            if set(group.layer_names).isdisjoint(tensor.layer_names):
                continue
            num_bytes = plan.page_bytes(tensor)
            pieces.append(BlockPiece(group_index, tensor_index, offset, num_bytes))
            offset += num_bytes
    return tuple(pieces)


def cross_group_block_bytes(plan: KVPlan) -> int:
    """Return the bytes of one cross-group block on one device; 0 if no layer uses the cache."""
    return sum(piece.num_bytes for piece in block_pieces(plan))


class KVStoreScheduler(ABC):
    """The scheduler side of a store, in the engine's process; no torch.

    It is built after the weights are loaded. Implement `check_options` so that wrong options are
    reported before that, and by `quire explain`.

    Args:
        options: `--kv-store-options`, by key.
        plan: Memory layout of the cache: groups, tensors and their sizes.

    Raises:
        SettingsError: An option is unknown or cannot work.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None: ...

    @classmethod
    def check_options(cls, options: Mapping[str, str], plan: KVPlan | None = None) -> None:
        """Check the options before anything is loaded. The default accepts everything.

        Args:
            options: Options as for the constructor.
            plan: Memory layout of the cache; None: not known yet.

        Raises:
            SettingsError: An option is unknown or cannot work.
        """
        del options, plan

    @abstractmethod
    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> KVLookup:
        """Return how many of these blocks, counted from the first, are stored without a gap.

        Args:
            request_id: Id of the request; the lookup of a request may be repeated.
            block_hashes: Hashes of the cross-group blocks beyond the local hit, in order.
        """

    @abstractmethod
    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Start to load stored content into these blocks.

        They are the first of the blocks that the last `lookup` for a request found a moment ago. If
        one of them is no longer stored, the transfer must fail. There was no `reset` in between.
        """

    @abstractmethod
    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Start to save those of a request's computed blocks that are not stored yet.

        Returns:
            Number of cross-group blocks that will be written; if 0, the transfer has ended already.
        """

    @abstractmethod
    def plan_step(self) -> bytes:
        """Return the message to the worker side about all calls since the last `plan_step`.

        It is empty if there is nothing new.
        """

    @abstractmethod
    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """Handle the end of a transfer. Blocks that failed to load must not be found again."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all blocks stored until now: the weights may have changed."""

    def forget_request(self, request_id: str) -> None:
        """Drop the state of a request that has ended; there are no more lookups for it."""
        del request_id

    def shutdown(self) -> None:
        """Release all resources. May be called twice."""
        return


class KVStoreWorker(ABC):
    """The worker side of a store, in the process of the model.

    Args:
        options: `--kv-store-options`, by key.
        plan: Memory layout of the cache.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None: ...

    @abstractmethod
    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Receive the cache's memory: the plan's tensors, uint8 `[num_blocks, bytes per block]`."""

    @abstractmethod
    def begin_step(self, message: bytes) -> None:
        """Start the planned transfers. Called before the step's forward pass.

        Blocks to save were computed by earlier steps. Loaded blocks are not read before their
        transfer is reported as done.

        Args:
            message: Message from `plan_step`; empty if nothing is new.
        """

    @abstractmethod
    def report(self) -> TransferReport:
        """Return the transfers that ended since the last call. Called after each forward pass."""

    def shutdown(self) -> None:
        """Stop reading and writing blocks, and release all resources. May be called twice.

        It must not wait without a limit: it is also called if the store no longer responds.
        """
        return


@dataclass(frozen=True, slots=True)
class KVStoreCapabilities:
    """Properties of a KV store, declared at registration.

    Attributes:
        worker: Import string of its `KVStoreWorker`; the registered entry itself refers to the
            `KVStoreScheduler`.
    """

    worker: str

    def __post_init__(self) -> None:
        check_reference(self.worker, "a KV store's worker")
