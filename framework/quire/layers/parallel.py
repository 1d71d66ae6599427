"""Groups of ranks: the tensor-parallel group of a layer, links of pipeline stages, and shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quire.errors import QuireError, SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.model import StageTensors


class RankGroup:
    """Ranks that call the same functions in the same order, and fail together.

    A call that cannot complete, because a rank died, raised an error or does not come in time,
    raises CollectiveError on the other ranks. So do all later calls, until the group is reset.

    Attributes:
        can_reset: Whether the group is usable again after `reset`.
    """

    can_reset: bool = False

    def abort(self) -> None:
        """Make the present and later calls of all ranks fail; may be called from any thread."""

    def reset(self, epoch: int) -> None:
        """Make the group usable again, once no rank is in a call.

        Args:
            epoch: Number greater than that of each earlier reset, the same on all ranks; a group
                starts with epoch 1.

        Raises:
            QuireError: The group cannot be reset.
        """
        del epoch
        raise QuireError(
            f"{type(self).__name__} cannot be used again after a collective failed; restart the "
            "workers"
        )

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""

    def close(self) -> None:
        """Leave the group and free its resources; the calls of other ranks fail."""


class TensorParallelGroup(RankGroup, ABC):
    """The devices that each layer is sharded over, and their collectives.

    Attributes:
        rank: Rank of this device, from 0.
        size: Number of devices.
        is_traceable: Whether CPU graphs can trace its collectives, as calls of compiled functions.
    """

    rank: int
    size: int
    is_traceable: bool = True

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all devices, the same bits on each; `x` may be written in place.

        Raises:
            CollectiveError: The collective cannot complete.
        """

    @abstractmethod
    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all devices concatenated along `dim` in rank order.

        Raises:
            CollectiveError: The collective cannot complete.
        """


class StageLink(RankGroup, ABC):
    """Link from one rank of a pipeline stage to the same rank of the next stage.

    One side sends and the other receives, in the same order.
    """

    @abstractmethod
    def send(self, tensors: StageTensors) -> None:
        """Send a step's tensors; waits only if the receiver is many steps behind.

        The tensors may be written to after the call.

        Raises:
            CollectiveError: The receiver does not make room in time, or the link failed.
        """

    @abstractmethod
    def receive(self, num_tokens: int) -> StageTensors:
        """Wait for the tensors of the next step, which has `num_tokens` tokens.

        Raises:
            CollectiveError: They do not come in time, or are another step's; or the link failed.
        """


class SingleDevice(TensorParallelGroup):
    """A group of one device, which has every layer whole."""

    rank = 0
    size = 1
    can_reset = True

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return `x`: there is nothing to add."""
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return `x`: there is nothing to concatenate."""
        del dim
        return x

    def reset(self, epoch: int) -> None:
        """Do nothing: no collective of one device can fail."""


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
