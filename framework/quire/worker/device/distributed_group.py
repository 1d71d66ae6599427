"""Tensor-parallel groups over torch.distributed: Gloo on the CPU, NCCL on CUDA.

The rendezvous is a file that only this user can read, so no port is opened for it. Gloo uses the
loopback interface unless GLOO_SOCKET_IFNAME is set.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from quire.errors import SettingsError
from quire.layers.parallel import SingleDevice, TensorParallelGroup

TIMEOUT = timedelta(minutes=10)


class DistributedGroup(TensorParallelGroup):
    """Tensor-parallel group whose ranks are in several processes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.size = group.size()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up `x` over all ranks, in place."""
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all ranks joined along `dim`."""
        x = x.contiguous()  # as the transport requires
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self._group)
        return torch.cat(parts, dim)


def join_group(
    address: Path, rank: int, size: int, device: torch.device, timeout: timedelta = TIMEOUT
) -> TensorParallelGroup:
    """Join the group of all ranks by a rendezvous file; a single rank needs no rendezvous.

    Args:
        address: Path of the rendezvous file, which must not exist yet. The same for all ranks, in a
            private directory.
        rank: Rank of this process, from 0.
        size: Number of ranks.
        device: Device of this rank.
        timeout: Time limit for the rendezvous, and for each collective operation.

    Raises:
        SettingsError: The rank is not within the group's size.
    """
    if not 0 <= rank < size:
        raise SettingsError(f"rank {rank} is not among the {size} ranks of tensor_parallel_size")
    if size == 1:
        return SingleDevice()
    is_cuda = device.type == "cuda"
    if not is_cuda:
        _default_to_loopback()
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"file://{address.absolute()}",
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if is_cuda else None,
    )
    return DistributedGroup(dist.new_group())


def leave_group(group: TensorParallelGroup) -> None:
    """Close the group's connections."""
    if isinstance(group, DistributedGroup):
        dist.destroy_process_group()


def _default_to_loopback() -> None:
    """Make Gloo use the loopback interface; by default it uses what the hostname resolves to."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
