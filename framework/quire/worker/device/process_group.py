"""Connections of torch.distributed between ranks: Gloo on the CPU, NCCL on CUDA.

Addresses travel through the launch's exchange: no port is opened for a rendezvous, and no
environment variable is read or set here. Gloo listens on one address, which is an argument. NCCL
chooses its interface by NCCL_SOCKET_IFNAME, which must be in the environment that the process is
started with. Neither encrypts or authenticates: whatever reaches these ports can disturb a group.

Gloo names no rank in its errors, and a call that waits in it ends by its time limit or when a
connection ends, not by `abort`. With NCCL calls fail on the device: `abort` frees it, and torch
ends a process whose collective exceeds the time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist

from quire.errors import CollectiveError, SettingsError
from quire.worker.device.channel_store import ChannelStore
from quire.worker.device.group_place import Exchange, GroupPlace

Backend = Any  # torch's stubs have no names for what Gloo's and NCCL's groups have in common


class ProcessGroup:
    """Connections of a group, with the errors of their calls.

    Args:
        backend: Gloo's or NCCL's process group.
        store: Store of its addresses, which NCCL also reads later.
        place: Place of this rank.
        noun: Name of what is counted, for messages.
        is_nccl: Whether it is NCCL's.
    """

    def __init__(
        self,
        backend: Backend,
        store: ChannelStore,
        place: GroupPlace,
        noun: str,
        *,
        is_nccl: bool,
    ) -> None:
        self._backend: Backend | None = backend
        self._store = store  # torch keeps no reference to a store in Python
        self._is_nccl = is_nccl
        self._timeout = timedelta(seconds=place.timeout_s)
        self._noun = noun
        self._ranks = ", ".join(map(str, place.ranks))
        self._rank = place.ranks[place.rank]
        self._count = 0
        self._failure = ""

    @classmethod
    def connect(
        cls,
        exchange: Exchange,
        key: str,
        place: GroupPlace,
        device: torch.device,
        interface_address: str,
        noun: str,
    ) -> ProcessGroup:
        """Connect to the other ranks of the group.

        Raises:
            CollectiveError: The ranks do not come in time, or cannot be reached.
            SettingsError: The address is not one of this machine's interfaces.
        """
        store = ChannelStore(exchange, key, place.timeout_s)
        timeout = timedelta(seconds=place.timeout_s)
        is_nccl = device.type == "cuda"
        listener = None if is_nccl else _listening_device(interface_address)
        try:
            if is_nccl:
                backend = _connect_nccl(store, place, timeout, device)
            else:
                backend = _connect_gloo(store, place, timeout, listener)
        except (RuntimeError, TimeoutError) as error:
            ranks = ", ".join(map(str, place.ranks))
            raise CollectiveError(
                f"rank {place.ranks[place.rank]} cannot connect to the group of ranks {ranks}: "
                f"{error}"
            ) from error
        return cls(backend, store, place, noun, is_nccl=is_nccl)

    @contextmanager
    def call(self) -> Iterator[Backend]:
        """Count a call, and turn its errors into those of the group.

        Raises:
            CollectiveError: The call failed, or an earlier one.
        """
        if self._backend is None or self._failure:
            raise self._error(self._failure or "the group is closed")
        self._count += 1
        try:
            yield self._backend
        except RuntimeError as error:
            self._failure = str(error)
            raise self._error(self._failure) from error

    def wait_for_message(self, work: dist.Work) -> None:
        """Wait until a message is sent or received; with NCCL, only the device waits."""
        if self._is_nccl:
            work.wait()
        else:
            work.wait(self._timeout)  # Gloo applies its default to collectives only

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._timeout = timedelta(seconds=seconds)
        if self._backend is not None:
            self._backend._set_default_timeout(self._timeout)

    def abort(self) -> None:
        """Make later calls of this rank fail, and free a device that waits in one."""
        self._failure = self._failure or "the group was aborted on this rank"
        if self._backend is not None and self._is_nccl:
            self._backend.abort()

    def close(self) -> None:
        """Close the connections, so that the calls of the other ranks fail."""
        if self._backend is not None and self._is_nccl:
            self._backend.shutdown()
        self._backend = None  # Gloo closes with its last reference

    def _error(self, reason: str) -> CollectiveError:
        return CollectiveError(
            f"{self._noun} {self._count} of ranks {self._ranks} failed on rank {self._rank}: "
            f"{reason}",
            count=self._count,
        )


def _listening_device(address: str) -> object:
    """Return Gloo's device that listens on an address."""
    try:
        is_wildcard = ip_address(address).is_unspecified
    except ValueError as error:
        raise SettingsError(
            f"{address!r} is not an IP address; ranks listen on the address of one interface"
        ) from error
    if is_wildcard:
        raise SettingsError(
            f"ranks do not listen on {address}, because their ports are not authenticated; name "
            "the address of the interface that connects the machines"
        )
    try:
        return dist.ProcessGroupGloo.create_device(hostname=address)
    except RuntimeError as error:
        raise SettingsError(
            f"ranks cannot listen on {address}: {error}; is it an address of this machine?"
        ) from error


def _connect_gloo(
    store: ChannelStore, place: GroupPlace, timeout: timedelta, device: object
) -> Backend:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._devices, options._threads = timeout, [device], 1
    return dist.ProcessGroupGloo(store, place.rank, place.size, options)


def _connect_nccl(
    store: ChannelStore, place: GroupPlace, timeout: timedelta, device: torch.device
) -> Backend:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(store, place.rank, place.size, options)
    index = torch.cuda.current_device() if device.index is None else device.index
    backend.eager_connect_single_device(torch.device("cuda", index))
    return backend
