"""Tensor-parallel group over torch.distributed: Gloo between machines without GPUs, NCCL on CUDA.

Gloo's and NCCL's all-reduce add up each element on one rank and send the sum to the others, so all
ranks have the same bits. The order of the sum depends on the size of the tensor and of the group.
On GPUs of one node, small tensors may be added up in symmetric memory instead of by NCCL.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from quire.layers.parallel import TensorParallelGroup
from quire.worker.device.group_place import Exchange, GroupPlace
from quire.worker.device.process_group import ProcessGroup
from quire.worker.device.rendezvous import Rendezvous
from quire.worker.device.symmetric_memory import SymmetricMemory

REDUCED = (torch.float32, torch.bfloat16, torch.float16)


class DistributedGroup(TensorParallelGroup):
    """Tensor-parallel group whose ranks are processes on any machines.

    Args:
        connections: Connections to the other ranks.
        place: Place of this rank.
        device: Device of the tensors.
    """

    is_traceable = False  # a trace of the calls has none of torch.distributed

    def __init__(self, connections: ProcessGroup, place: GroupPlace, device: torch.device) -> None:
        self.rank = place.rank
        self.size = place.size
        self.can_reset = connections.can_reset
        self._connections = connections
        self._is_cuda = device.type == "cuda"
        self._symmetric: SymmetricMemory | None = None

    @classmethod
    def join(
        cls,
        exchange: Exchange,
        key: str,
        place: GroupPlace,
        device: torch.device,
        interface_address: str,
    ) -> Self:
        """Connect to the other ranks, which call this function with the same key.

        Args:
            exchange: Exchange of the launch, through which addresses are published.
            key: Name of the group, unique in the launch.
            place: Place of this rank.
            device: Device of the tensors.
            interface_address: IP address of the interface that this rank listens on.

        Raises:
            CollectiveError: The ranks do not come in time, or cannot be reached.
            SettingsError: The address is not one of this machine's interfaces.
        """
        rendezvous = Rendezvous(
            exchange=exchange,
            key=key,
            place=place,
            device=device,
            interface_address=interface_address,
        )
        return cls(ProcessGroup(rendezvous, "collective"), place, device)

    def use_symmetric_memory(self, memory: SymmetricMemory | None) -> None:
        """Add up small tensors in symmetric memory, which all ranks have joined, or none has."""
        self._symmetric = memory

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up `x` over all ranks, in place if it is contiguous.

        With Gloo, sums of narrow dtypes are float32, and rounded once.

        Raises:
            ValueError: The dtype cannot be added up.
        """
        if x.dtype not in REDUCED:
            raise ValueError(f"all_reduce adds up {', '.join(map(str, REDUCED))}, not {x.dtype}")
        x = x.contiguous()
        symmetric = self._symmetric
        if symmetric is not None and (kernel := symmetric.kernel_for(x)) is not None:
            with self._connections.call():
                return symmetric.all_reduce(x, kernel)
        total = x if self._is_cuda else x.float()
        with self._connections.call() as backend:
            backend.allreduce([total]).wait()
        return x if total is x else x.copy_(total)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all ranks joined along `dim`."""
        dim %= x.dim()
        x = x.contiguous()
        parts = torch.empty(self.size, *x.shape, dtype=x.dtype, device=x.device)
        with self._connections.call() as backend:
            backend._allgather_base(_bytes(parts), _bytes(x)).wait()
        return parts.movedim(0, dim).flatten(dim, dim + 1)

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._connections.set_timeout(seconds)

    def abort(self) -> None:
        """Make later calls of this rank fail, and with Gloo those of the others."""
        self._connections.abort()

    def reset(self, epoch: int) -> None:
        """Make the group usable again, once no rank is in a call; all ranks call it.

        Raises:
            QuireError: The group cannot be reset, or the others do not come in time.
        """
        if not self.can_reset:
            super().reset(epoch)
        self._connections.reset(epoch)

    def close(self) -> None:
        """Close the connections; the calls of the other ranks fail."""
        if self._symmetric is not None:
            self._symmetric.close()
        self._connections.close()


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
