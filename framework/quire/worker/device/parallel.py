"""Tensor parallelism over torch.distributed; ranks meet at a file that only this user can read.

The rendezvous is a file, given by name, so no port is opened for it. Gloo on the CPU, which talks
over the loopback interface unless GLOO_SOCKET_IFNAME says otherwise; NCCL on CUDA.
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
    """Ranks in several processes."""

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
        x = x.contiguous()  # what the transport sends
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self._group)
        return torch.cat(parts, dim)


def join_group(
    address: Path, rank: int, size: int, device: torch.device, timeout: timedelta = TIMEOUT
) -> TensorParallelGroup:
    """Meet the other ranks at a file, and return the group; one rank alone meets nobody.

    Args:
        address: A file that does not exist yet, the same for all ranks, in a private directory.
        rank: This process's place, from 0.
        size: How many ranks there will be.
        device: Where this rank computes.
        timeout: How long to wait for the others, now and in each operation.

    Raises:
        SettingsError: The rank is not one of the group's.
    """
    if not 0 <= rank < size:
        raise SettingsError(f"rank {rank} is not among the {size} of tensor_parallel_size")
    if size == 1:
        return SingleDevice()
    is_cuda = device.type == "cuda"
    if not is_cuda:
        _stay_on_this_machine()
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
    """Give the group's connections back."""
    if isinstance(group, DistributedGroup):
        dist.destroy_process_group()


def _stay_on_this_machine() -> None:
    """Let gloo listen on the loopback interface; its default is whatever the host's name means."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
