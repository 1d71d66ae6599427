"""Calls of a group of ranks over torch.distributed, and their failures.

Gloo names no rank in its errors, and a call that waits in it ends by its time limit or when a
connection ends. So `abort` closes the connections of a rank, and `reset` connects all ranks anew.
Gloo closes with the last reference, so the frames of an error must not hold one.

With NCCL calls fail on the device: `abort` frees it, and torch ends a process whose collective
exceeds the time limit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from quire.errors import CollectiveError, QuireError
from quire.worker.device.rendezvous import Backend, Rendezvous


class ProcessGroup:
    """Connections of a group, with the errors of their calls.

    Args:
        rendezvous: Means to connect to the other ranks.
        noun: Name of what is counted, for messages.

    Raises:
        CollectiveError: The ranks do not come in time, or cannot be reached.
        SettingsError: The address is not one of this machine's interfaces.

    Attributes:
        can_reset: Whether the group is usable again after `reset`.
    """

    def __init__(self, rendezvous: Rendezvous, noun: str) -> None:
        place = rendezvous.place
        self.can_reset = not rendezvous.is_nccl
        self._rendezvous = rendezvous
        self._timeout_s = place.timeout_s
        self._noun = noun
        self._ranks = ", ".join(map(str, place.ranks))
        self._rank = place.ranks[place.rank]
        self._count = 0
        self._epoch = 1
        self._failure = ""
        self._is_closed = False
        self._backend: Backend | None
        # torch keeps no reference to a store in Python, and NCCL reads it later.
        self._backend, self._store = rendezvous.connect(self._epoch, self._timeout_s)

    @contextmanager
    def call(self) -> Iterator[Backend]:
        """Count a call of torch's group, and turn its errors into those of this one.

        Raises:
            CollectiveError: The call failed, or an earlier one.
        """
        if self._backend is None or self._failure:
            raise self._error(self._failure)
        self._count += 1
        try:
            yield weakref.proxy(self._backend)
        except RuntimeError as error:
            self._failure = str(error)
            raise self._error(self._failure) from error

    def wait_for_message(self, work: dist.Work) -> None:
        """Wait until a message is sent or received; with NCCL, only the device waits."""
        try:
            if self._rendezvous.is_nccl:
                work.wait()
            else:  # Gloo applies its default to collectives only
                work.wait(timedelta(seconds=self._timeout_s))
        finally:
            del work  # it refers to the connections

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._timeout_s = seconds
        if self._backend is not None:
            self._backend._set_default_timeout(timedelta(seconds=seconds))

    def abort(self) -> None:
        """Make later calls of this rank fail, and free whatever waits for this rank.

        With Gloo, that are the other ranks; with NCCL, the device of this one.
        """
        self._failure = self._failure or "the group was aborted on this rank"
        if self._backend is not None and self._rendezvous.is_nccl:
            self._backend.abort()
        else:
            self._backend = None  # Gloo closes with its last reference

    def reset(self, epoch: int) -> None:
        """Connect all ranks anew, once none is in a call.

        Raises:
            CollectiveError: The other ranks do not come in time, or cannot be reached.
            QuireError: The epoch is not later than the present one, or the group is closed.
        """
        if self._is_closed:
            raise QuireError("a closed group of ranks cannot be reset")
        if epoch <= self._epoch:
            raise QuireError(f"epoch {epoch} does not follow epoch {self._epoch} of this group")
        self._backend = None
        self._backend, self._store = self._rendezvous.connect(epoch, self._timeout_s)
        self._epoch, self._count, self._failure = epoch, 0, ""

    def close(self) -> None:
        """Close the connections, so that the calls of the other ranks fail."""
        if self._backend is not None and self._rendezvous.is_nccl:
            self._backend.shutdown()
        self._is_closed, self._failure = True, self._failure or "the group is closed"
        self._backend = None  # Gloo closes with its last reference

    def _error(self, reason: str) -> CollectiveError:
        return CollectiveError(
            f"{self._noun} {self._count} of ranks {self._ranks} failed on rank {self._rank}: "
            f"{reason}",
            count=self._count,
        )
