"""Rendezvous of the ranks of a group in torch.distributed: Gloo on the CPU, NCCL on CUDA.

Addresses travel through the launch's exchange, so no port is opened for a rendezvous. Gloo listens
on one address, which is an argument. NCCL listens on the interface that has it; it reads the name
from NCCL_SOCKET_IFNAME when the first group of a process is made. A value that the user has set is
kept. Neither encrypts or authenticates: whatever reaches these ports can disturb a group.

Gloo keeps a file descriptor for ever of each connection that is none of its ranks'. So its port
admits no more connections once all ranks are connected.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from quire.errors import CollectiveError, SettingsError
from quire.machine.network_interfaces import interface_of, listening_address
from quire.process.network.listening_sockets import admit_no_more, listening_sockets
from quire.worker.device.channel_store import ChannelStore
from quire.worker.device.group_place import Exchange, GroupPlace

NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"

_one_device_at_a_time = threading.Lock()

logger = logging.getLogger(__name__)

Backend = Any  # torch's stubs have no names for what Gloo's and NCCL's groups have in common


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Means of one rank to connect to the others of its group, which use the same key.

    Attributes:
        exchange: Exchange of the launch, through which addresses are published.
        key: Name of the group, unique in the launch.
        place: Place of this rank.
        device: Device of the tensors.
        interface_address: IP address of the interface that this rank listens on.
    """

    exchange: Exchange
    key: str
    place: GroupPlace
    device: torch.device
    interface_address: str

    @property
    def is_nccl(self) -> bool:
        """Whether the ranks connect by NCCL."""
        return self.device.type == "cuda"

    def connect(self, epoch: int, timeout_s: float) -> tuple[Backend, ChannelStore]:
        """Connect to the other ranks.

        Args:
            epoch: Number of the connection, the same on all ranks; each is connected once.
            timeout_s: Time limit, also that of the calls that follow.

        Returns:
            torch's group, and the store of its addresses, which must live as long.

        Raises:
            CollectiveError: The ranks do not come in time, or cannot be reached.
            SettingsError: The address is not one of this machine's interfaces; there is no NCCL.
        """
        key = self.key if epoch == 1 else f"{self.key}, epoch {epoch}"
        store = ChannelStore(self.exchange, key, timeout_s)
        connect = self._connect_nccl if self.is_nccl else self._connect_gloo
        try:
            return connect(store, timedelta(seconds=timeout_s)), store
        except (RuntimeError, TimeoutError) as error:
            ranks = self.place.ranks
            raise CollectiveError(
                f"rank {ranks[self.place.rank]} cannot connect to the group of ranks "
                f"{', '.join(map(str, ranks))}: {error}"
            ) from error

    def _connect_gloo(self, store: ChannelStore, timeout: timedelta) -> Backend:
        address = str(listening_address(self.interface_address))
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        device, ports = _gloo_device(address)
        options._devices = [device]
        options._timeout, options._threads = timeout, 1
        backend = dist.ProcessGroupGloo(store, self.place.rank, self.place.size, options)
        _close_ports(address, ports)
        return backend

    def _connect_nccl(self, store: ChannelStore, timeout: timedelta) -> Backend:
        if not dist.is_nccl_available():
            raise SettingsError(
                "this build of torch has no NCCL, by which ranks on GPUs exchange tensors; install "
                "one that has it, or serve the model with one worker"
            )
        _use_interface(self.interface_address)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend = dist.ProcessGroupNCCL(store, self.place.rank, self.place.size, options)
        index = self.device.index
        backend.eager_connect_single_device(
            torch.device("cuda", torch.cuda.current_device() if index is None else index)
        )
        return backend


def _gloo_device(address: str) -> tuple[Any, Collection[int]]:
    """Return a device of Gloo, whose ranks connect at once, and what it listens on."""
    with _one_device_at_a_time:  # ranks may be threads of one process
        before = listening_sockets(address)
        device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
        found = listening_sockets(address)
    return device, [fd for name, fd in found.items() if name not in before]


def _close_ports(address: str, ports: Collection[int]) -> None:
    """Let no more connections be opened at the ports of Gloo, whose ranks are connected."""
    try:
        for port in ports:
            admit_no_more(port)
    except OSError as error:
        logger.warning(
            "the port of Gloo at %s stays open, although all ranks are connected, because this "
            "system has no packet filters (%s); let a firewall protect it: connections of a "
            "stranger use up the files that a rank may open",
            address,
            error.strerror,
        )


def _use_interface(address: str) -> None:
    """Make NCCL listen on the interface that has an address, unless the user has set another."""
    os.environ.setdefault(NCCL_INTERFACE, f"={interface_of(address)}")  # "=": the whole name
