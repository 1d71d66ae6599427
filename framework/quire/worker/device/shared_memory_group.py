"""Tensor-parallel group of CPU ranks on one machine, over shared memory and in C++.

Sums are float32 in rank order, rounded once, so all ranks have the same bits. Calls are traced like
those of compiled kernels, so a step with collectives keeps its CPU graph.
"""

from __future__ import annotations

import math
from ctypes import byref
from typing import Self

import torch
from torch import Tensor

from quire.layers.parallel import TensorParallelGroup
from quire.native.collectives.member import CONTROL_BYTES, SHARED_MEMORY, GroupMember
from quire.native.collectives.shared_segment import SegmentHandle, SharedSegment
from quire.worker.device.group_place import Exchange, GroupPlace, get_handle, set_handle

SLOT_BYTES = 2**19  # a piece of a tensor; two slots a rank
TWO_SHOT_BYTES = 2**18  # larger pieces are added up in parts, for a second meeting takes time
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in shared_memory.cpp


class SharedMemoryGroup(TensorParallelGroup):
    """Tensor-parallel group whose ranks are processes on one machine.

    Args:
        segment: Shared memory of the group.
        place: Place of this rank.
    """

    can_reset = True

    def __init__(self, segment: SharedSegment, place: GroupPlace) -> None:
        self.rank = place.rank
        self.size = place.size
        self.handle = segment.handle
        self._member = GroupMember(
            segment, place.rank, place.ranks, place.ranks_on_node, place.timeout_s
        )
        self._state = byref(self._member.state)
        self._reduce = self._member.library.all_reduce
        self._gather = self._member.library.all_gather

    @classmethod
    def join(cls, exchange: Exchange, key: str, place: GroupPlace) -> Self:
        """Create the group as its rank 0, or attach to it; its address is published under `key`.

        Raises:
            CapacityError: There is too little memory.
            CollectiveError: Rank 0 does not create the group in time.
            NativeUnavailableError: The C++ code is not available on this machine.
            SettingsError: The memory of rank 0 cannot be opened.
        """
        if place.rank:
            return cls.attach(get_handle(exchange, key, place), place)
        group = cls.create(place)
        set_handle(exchange, key, group.handle)
        return group

    @classmethod
    def create(
        cls, place: GroupPlace, slot_bytes: int = SLOT_BYTES, two_shot_bytes: int | None = None
    ) -> Self:
        """Create the group as its rank 0; the others attach to `handle`.

        Args:
            place: Place of this rank.
            slot_bytes: Size of the pieces that tensors are passed in.
            two_shot_bytes: Size beyond which each rank adds up only a part of a piece; by default,
                never for two ranks, which would not read less.

        Raises:
            CapacityError: There is too little memory.
            NativeUnavailableError: The C++ code is not available on this machine.
        """
        SHARED_MEMORY.load()
        if two_shot_bytes is None:
            two_shot_bytes = TWO_SHOT_BYTES if place.size > 2 else slot_bytes
        num_bytes = CONTROL_BYTES + 2 * place.size * slot_bytes
        return cls(SharedSegment.create(num_bytes, (place.size, slot_bytes, two_shot_bytes)), place)

    @classmethod
    def attach(cls, handle: SegmentHandle, place: GroupPlace) -> Self:
        """Attach to the group that its rank 0 has created.

        Raises:
            NativeUnavailableError: The C++ code is not available on this machine.
            SettingsError: The memory of rank 0 cannot be opened.
        """
        SHARED_MEMORY.load()
        return cls(SharedSegment.open(handle), place)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add up `x` over all ranks, in place if it is contiguous.

        Raises:
            ValueError: The dtype cannot be added up.
        """
        dtype = DTYPES.get(x.dtype)
        if dtype is None:
            raise ValueError(f"all_reduce adds up {', '.join(map(str, DTYPES))}, not {x.dtype}")
        x = x.contiguous()
        self._reduce(self._state, x.data_ptr(), x.numel(), dtype)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all ranks joined along `dim`."""
        x = x.contiguous()
        shape = list(x.shape)
        rows = math.prod(shape[:dim])
        row_bytes = math.prod(shape[dim:]) * x.itemsize
        shape[dim] *= self.size
        out = torch.empty(shape, dtype=x.dtype)
        self._gather(self._state, x.data_ptr(), out.data_ptr(), rows, row_bytes)
        return out

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of the calls that begin from now on."""
        self._member.set_timeout(seconds)

    def abort(self) -> None:
        """Make the present and later calls of all ranks fail; may be called from any thread."""
        self._member.abort()

    def reset(self, epoch: int) -> None:
        """Make the group usable again, once no rank is in a call."""
        self._member.reset(epoch)

    def close(self) -> None:
        """Leave the group; the calls of other ranks fail."""
        self._member.close()
