"""The tensor-parallel group of a layer, and the sharding of heads and features over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quire.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor


class TensorParallelGroup(ABC):
    """The devices that each layer is sharded over, and their collectives.

    Attributes:
        rank: Rank of this device, from 0.
        size: Number of devices.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all devices; `x` may be written in place."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all devices concatenated along `dim` in rank order."""


class SingleDevice(TensorParallelGroup):
    """A group of one device, which has every layer whole."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return `x`: there is nothing to add."""
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return `x`: there is nothing to concatenate."""
        del dim
        return x


def shard(what: str, count: int, tp: TensorParallelGroup) -> range:
    """Return the range of `count` items that belongs to this device.

    Raises:
        SettingsError: The items, named by `what`, cannot be divided evenly.
    """
    if count % tp.size:
        raise SettingsError(
            f"{what} ({count}) cannot be divided over tensor_parallel_size={tp.size} devices"
        )
    size = count // tp.size
    return range(tp.rank * size, (tp.rank + 1) * size)


def shard_kv_heads(num_kv_heads: int, tp: TensorParallelGroup) -> range:
    """Return this device's key/value heads; with fewer heads than devices, heads are replicated.

    Raises:
        SettingsError: Neither count divides the other.
    """
    if num_kv_heads >= tp.size:
        return shard("num_key_value_heads", num_kv_heads, tp)
    if tp.size % num_kv_heads:
        raise SettingsError(
            f"num_key_value_heads ({num_kv_heads}) cannot be repeated evenly over "
            f"tensor_parallel_size={tp.size} devices"
        )
    head = tp.rank // (tp.size // num_kv_heads)
    return range(head, head + 1)
