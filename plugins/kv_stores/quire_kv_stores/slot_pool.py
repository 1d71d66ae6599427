"""Host memory for stored blocks, in slots of equal size with a checksum of each.

Memory is allocated in slabs as slots come into use, and never more than all slots need. The
checksum of a slot covers the hash of its block too, so it detects damaged bytes and another block.
"""

import zlib

import torch
from torch import Tensor

from quire.errors import CapacityError

SLAB_BYTES = 64 * 2**20  # approximate size of a slab


class SlotPool:
    """Slots for at most `num_slots` cross-group blocks.

    Args:
        num_slots: Number of slots.
        cross_group_block_bytes: Size of each slot.
        is_pinned: Whether to pin the memory, for copies to and from a GPU.
    """

    def __init__(self, num_slots: int, cross_group_block_bytes: int, *, is_pinned: bool) -> None:
        self.num_slots = num_slots
        self.cross_group_block_bytes = cross_group_block_bytes
        self._is_pinned = is_pinned
        self._slots_a_slab = max(1, SLAB_BYTES // cross_group_block_bytes)
        self._slabs: dict[int, Tensor] = {}
        self._checksums: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        """Number of bytes that are allocated."""
        return sum(slab.numel() for slab in self._slabs.values())

    def slot(self, index: int) -> Tensor:  # [cross_group_block_bytes] uint8
        """Return the bytes of a slot.

        Raises:
            CapacityError: Its memory could not be allocated.
            IndexError: There is no such slot.
        """
        if not 0 <= index < self.num_slots:
            raise IndexError(f"slot {index} is out of range: there are {self.num_slots} slots")
        number, row = divmod(index, self._slots_a_slab)
        if number not in self._slabs:
            self._slabs[number] = self._allocate(number)
        return self._slabs[number][row]

    def record_checksum(self, index: int, block_hash: bytes) -> None:
        """Record the checksum of a slot that was filled."""
        self._checksums[index] = self._checksum(index, block_hash)

    def drop_checksum(self, index: int) -> None:
        """Drop the checksum of a slot that is about to be filled."""
        self._checksums.pop(index, None)

    def is_intact(self, index: int, block_hash: bytes) -> bool:
        """Return whether a slot has the unchanged content of this block."""
        checksum = self._checksums.get(index)
        return checksum is not None and checksum == self._checksum(index, block_hash)

    def clear(self) -> None:
        """Free all memory."""
        self._slabs.clear()
        self._checksums.clear()

    def _checksum(self, index: int, block_hash: bytes) -> int:
        return zlib.crc32(self.slot(index).numpy().data, zlib.crc32(block_hash))

    def _allocate(self, number: int) -> Tensor:
        num_slots = min(self._slots_a_slab, self.num_slots - number * self._slots_a_slab)
        shape = (num_slots, self.cross_group_block_bytes)
        try:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=self._is_pinned)
        except RuntimeError as error:
            num_bytes = num_slots * self.cross_group_block_bytes
            raise CapacityError(
                f"host_memory: {num_bytes:,} bytes could not be allocated in addition to "
                f"{self.num_bytes:,}; lower max_bytes"
            ) from error
