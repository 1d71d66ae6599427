"""Arguments for joining groups: a rank's place, the exchange of addresses, the size of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch

from quire.errors import CollectiveError
from quire.interfaces.model import StageTensors
from quire.native.collectives.shared_segment import SegmentHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Place of a worker in a group of ranks.

    Attributes:
        rank: Rank in the group, from 0.
        ranks: Ranks of the members among all workers, in the order of the group; errors name them.
        ranks_on_node: Number of workers on this machine, of all groups and replicas.
        timeout_s: Time limit of joining, and of each call until another one is set.
    """

    rank: int
    ranks: Sequence[int]
    ranks_on_node: int
    timeout_s: float

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """Size of the messages between two pipeline stages.

    Attributes:
        hidden_size: Size of a hidden state.
        dtype: Dtype of hidden states and residuals.
        max_num_tokens: Largest number of tokens in a step.
        num_messages: Number of messages that may be sent before the first is received.
    """

    hidden_size: int
    dtype: torch.dtype
    max_num_tokens: int
    num_messages: int

    def check(self, tensors: StageTensors) -> None:
        """Check tensors before they are sent.

        Raises:
            ValueError: They are larger than the messages, or of another dtype.
        """
        num_tokens = len(tensors.hidden_states)
        expected = (min(num_tokens, self.max_num_tokens), self.hidden_size)
        for part in (tensors.hidden_states, tensors.residual):
            if part is not None and (part.shape != expected or part.dtype != self.dtype):
                raise ValueError(
                    f"a stage sends up to {self.max_num_tokens} tokens of {self.hidden_size} "
                    f"{self.dtype}, not {list(part.shape)} of {part.dtype}"
                )


class Exchange(Protocol):
    """Bytes that the ranks of a launch publish for each other, by key; each key is set once."""

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a value.

        Raises:
            TimeoutError: No rank published it in time.
        """


def set_handle(exchange: Exchange, key: str, handle: SegmentHandle) -> None:
    """Publish the address of shared memory."""
    exchange.set(key, msgspec.msgpack.encode(handle))


def get_handle(exchange: Exchange, key: str, place: GroupPlace) -> SegmentHandle:
    """Wait for the address of shared memory that the group's rank 0 creates.

    Raises:
        CollectiveError: It is not published in time.
    """
    try:
        value = exchange.get(key, place.timeout_s)
    except TimeoutError as error:
        raise CollectiveError(
            f"rank {place.ranks[0]} has not created {key} within {place.timeout_s:g} s",
            ranks=place.ranks[:1],
        ) from error
    return msgspec.msgpack.decode(value, type=SegmentHandle)
