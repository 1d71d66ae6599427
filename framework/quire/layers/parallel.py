"""Tensor parallelism as layers see it: a rank among equals, and two ways to combine tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quire.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor


class TensorParallelGroup(ABC):
    """The devices that share each layer.

    Attributes:
        rank: This device's place, from 0.
        size: How many there are.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all devices; `x` may be written in place."""

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all devices joined along `dim`, in the order of ranks."""


class SingleDevice(TensorParallelGroup):
    """One device has all of every layer."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return `x`: there is nothing to add."""
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return `x`: there is nothing to join."""
        del dim
        return x


def share(what: str, count: int, tp: TensorParallelGroup) -> range:
    """Return which of `count` equal things belong to this device.

    Raises:
        SettingsError: They cannot be divided evenly; `what` names them.
    """
    if count % tp.size:
        raise SettingsError(
            f"{what} ({count}) cannot be divided over tensor_parallel_size={tp.size} devices"
        )
    size = count // tp.size
    return range(tp.rank * size, (tp.rank + 1) * size)


def share_kv_heads(num_kv_heads: int, tp: TensorParallelGroup) -> range:
    """Return this device's key/value heads; with fewer heads than devices, heads are repeated.

    Raises:
        SettingsError: Neither count divides the other.
    """
    if num_kv_heads >= tp.size:
        return share("num_key_value_heads", num_kv_heads, tp)
    if tp.size % num_kv_heads:
        raise SettingsError(
            f"num_key_value_heads ({num_kv_heads}) cannot be repeated evenly over "
            f"tensor_parallel_size={tp.size} devices"
        )
    head = tp.rank // (tp.size // num_kv_heads)
    return range(head, head + 1)
