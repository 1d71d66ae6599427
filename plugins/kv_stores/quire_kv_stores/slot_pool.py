"""The bytes of stored columns, in slots of equal size, with a checksum of each.

Memory is taken slab by slab, as slots come into use, and never more than all slots need. A slot's
checksum covers its content's name as well: neither a damaged column nor another one passes for it.
"""

import zlib

import torch
from torch import Tensor

from quire.errors import CapacityError

SLAB_BYTES = 64 * 2**20  # memory is taken in steps of about so much


class SlotPool:
    """At most `num_slots` columns.

    Args:
        num_slots: How many.
        cross_group_block_bytes: Bytes of each.
        is_pinned: Whether a GPU copies to and from them.
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
        """Bytes that are allocated now."""
        return sum(slab.numel() for slab in self._slabs.values())

    def slot(self, index: int) -> Tensor:  # [cross_group_block_bytes] uint8
        """Return the bytes of a slot.

        Raises:
            CapacityError: The machine has no memory for it.
            IndexError: There is no such slot.
        """
        if not 0 <= index < self.num_slots:
            raise IndexError(f"slot {index} of {self.num_slots}")
        number, row = divmod(index, self._slots_a_slab)
        if number not in self._slabs:
            self._slabs[number] = self._allocate(number)
        return self._slabs[number][row]

    def seal(self, index: int, block_hash: bytes) -> None:
        """A slot was filled: note what it holds."""
        self._checksums[index] = self._checksum(index, block_hash)

    def break_seal(self, index: int) -> None:
        """A slot is about to be filled: what it held is gone."""
        self._checksums.pop(index, None)

    def is_sound(self, index: int, block_hash: bytes) -> bool:
        """Whether a slot holds this content, unchanged."""
        sealed = self._checksums.get(index)
        return sealed is not None and sealed == self._checksum(index, block_hash)

    def clear(self) -> None:
        """Give all memory back."""
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
                f"host_memory: {num_bytes:,} bytes more could not be allocated after "
                f"{self.num_bytes:,}; lower max_bytes"
            ) from error
