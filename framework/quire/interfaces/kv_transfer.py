"""The interface of KV stores outside the pool: host memory, disks, other machines.

A store has two halves. The scheduler's half knows what is stored, by content; the worker's half
moves bytes. What the first tells the second travels in the step's plan and is opaque to the engine.

    lookup          how many blocks beyond the local hit the store has; the answer may be "later"
    start_load      the engine found room: bring them, into these blocks
    start_save      these blocks are full and computed: keep what is new, skip what is there
    plan_step       what the worker's half must know before the next step
    finish          a transfer ended, well or not

The engine holds every block of a transfer until it has ended. A request whose load fails, or takes
longer than `kv_store_timeout_s`, is computed after all, and one that is aborted leaves its transfer
to end by itself. What is open at one time holds no more than a share of the pool: a load may be cut
short, and what cannot be saved at the moment is not offered.

A store that raises or answers nonsense, or that ends none of its open transfers within
`kv_store_timeout_s`, is switched off for good: it is asked nothing any more, the worker's half is
shut down, and what was open has failed. So is a store whose transfers are open when a step is
interrupted: its orders may be lost.

The unit is a column: the block of one position in every KV group of the model, stored and loaded as
one under the hash of its content. Hashes chain: equal hash means equal tokens, beginning included,
and the same model, adapter and salt.
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
    """What a store has of a prompt.

    Attributes:
        num_blocks: Whole blocks beyond the local hit, without a gap.
        is_pending: The answer is not known yet: ask again soon. After `kv_store_timeout_s` of this
            the request is computed.
    """

    num_blocks: int = 0
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class CrossGroupBlock:
    """One position of a request: its content, and where it lies.

    Attributes:
        block_hash: Of the content.
        block_ids: The block in each KV group; 0, the null block, where the group does not need it.
            Such a column is not saved, because it is not whole. Of one that is loaded, the rest is:
            a window's group has ids only where the hit that follows from the load needs blocks.
    """

    block_hash: bytes
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """The share of a column that lies in one tensor of the plan, in the block of one KV group.

    Attributes:
        group: Whose block it is: an index of `CrossGroupBlock.block_ids`.
        tensor: Where it lies: row `block_ids[group]` of this tensor.
        offset: Of its first byte, when all pieces of a column stand after each other.
        num_bytes: Of one row of the tensor.
    """

    group: int
    tensor: int
    offset: int
    num_bytes: int


def block_pieces(plan: KVPlan) -> tuple[BlockPiece, ...]:
    """Return all that belongs to a column, in order; the last piece ends at the column's bytes.

    A tensor that several groups share has a piece for each of them. Where a group has no layer in
    a tensor, its blocks have nothing there.
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
    """Return the bytes of one whole column on one device; 0 where no layer keeps anything."""
    return sum(piece.num_bytes for piece in block_pieces(plan))


class KVStoreScheduler(ABC):
    """The half beside the scheduler, in the engine's process; no torch.

    It is built when the weights are loaded. What is wrong with its options can be said sooner, and
    by `quire explain` too, in `check_options`.

    Args:
        options: `--kv-store-options`, by key.
        plan: The memory of the cache: groups, tensors and their sizes.

    Raises:
        SettingsError: An option is unknown or cannot work.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None: ...

    @classmethod
    def check_options(cls, options: Mapping[str, str], plan: KVPlan | None = None) -> None:
        """Say what is wrong with the options, before anything is loaded; by default nothing is.

        Args:
            options: As for the constructor.
            plan: The memory of the cache; None: it is not known yet.

        Raises:
            SettingsError: An option is unknown or cannot work.
        """
        del options, plan

    @abstractmethod
    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> KVLookup:
        """Say how many of these blocks, from the first on, the store has.

        Args:
            request_id: Who asks; the same request may ask again.
            block_hashes: Of the blocks beyond the local hit, in order.
        """

    @abstractmethod
    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Bring stored columns into these blocks.

        They are the first of those that the last `lookup` for a request found, a moment ago; one
        that is gone since makes the transfer fail. No `reset` came in between.
        """

    @abstractmethod
    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Keep what is new of a request's computed columns.

        Returns:
            How many will be written; with 0 the transfer is over at once.
        """

    @abstractmethod
    def plan_step(self) -> bytes:
        """Return the message for the worker's half since the last call; empty if there is none."""

    @abstractmethod
    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """A transfer ended; what failed to load is not to be offered again."""

    @abstractmethod
    def reset(self) -> None:
        """Offer nothing any more that was stored until now: the weights may have changed."""

    def forget_request(self, request_id: str) -> None:
        """The request is over; nothing will be asked for it any more."""
        del request_id

    def shutdown(self) -> None:
        """Give everything back. May be called twice."""
        return


class KVStoreWorker(ABC):
    """The half beside the model.

    Args:
        options: `--kv-store-options`, by key.
        plan: The memory of the cache.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, str], plan: KVPlan) -> None: ...

    @abstractmethod
    def attach(self, tensors: Sequence[Tensor]) -> None:
        """Learn where the blocks lie: the plan's tensors, uint8, [num_blocks, bytes a block]."""

    @abstractmethod
    def begin_step(self, message: bytes) -> None:
        """Start what the scheduler's half planned; called before the step's forward pass.

        What is saved was computed by earlier steps; what is loaded is not read before it is
        reported as done.

        Args:
            message: Of `plan_step`; empty if nothing is new.
        """

    @abstractmethod
    def report(self) -> TransferReport:
        """Say what ended since the last call; called after each step's forward pass."""

    def shutdown(self) -> None:
        """Give everything back; after that no block is read or written. May be called twice.

        It must not wait for what may never come: it ends a store that has stopped answering, too.
        """
        return


@dataclass(frozen=True, slots=True)
class KVStoreCapabilities:
    """What a KV store declares at registration.

    Attributes:
        worker: Import string of its `KVStoreWorker`; the entry's own reference names the
            `KVStoreScheduler`.
    """

    worker: str

    def __post_init__(self) -> None:
        check_reference(self.worker, "a KV store's worker")
