"""The interface of KV stores outside the engine: host memory, disks, other machines.

The store has two halves. The scheduler's half is asked what it has beyond the local prefix hit;
the answer may be "later". The worker's half moves blocks. What the first half tells the second is
opaque to the engine. Blocks are held until the store lets go of them, and a load that fails means
that the tokens are computed after all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVLookup:
    """What a store has of a prompt.

    Attributes:
        num_tokens: Tokens beyond the local hit, whole blocks.
        is_pending: The answer is not known yet: ask again next step.
        is_async: The load goes on beside the steps; the request waits, others do not.
    """

    num_tokens: int = 0
    is_pending: bool = False
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class KVTransferReport:
    """What finished since the last step, by request id."""

    loaded: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class KVStoreScheduler(ABC):
    """The half that runs beside the scheduler."""

    @abstractmethod
    def lookup(
        self, request_id: str, block_hashes: Sequence[bytes], num_local_blocks: int
    ) -> KVLookup:
        """Say how much of the prompt the store has, beyond the blocks found locally."""

    @abstractmethod
    def plan_step(
        self,
        loads: Sequence[tuple[str, Sequence[bytes], Sequence[int]]],
        saves: Sequence[tuple[str, Sequence[bytes], Sequence[int]]],
    ) -> Any:
        """Return the message for the worker's half; each entry is a request, hashes, block ids."""

    @abstractmethod
    def finish(self, request_id: str) -> bool:
        """The request is over; True if its blocks must be held until a report names it."""


class KVStoreWorker(ABC):
    """The half that runs beside the model."""

    @abstractmethod
    def attach(self, kv_tensors: Sequence[Tensor]) -> None:
        """Learn where the blocks lie: uint8, block index outermost."""

    @abstractmethod
    def begin_step(self, plan: Any) -> None:
        """Start the transfers of a step; loads that are not async end before the model reads."""

    @abstractmethod
    def report(self) -> KVTransferReport:
        """Say what finished since the last call."""
