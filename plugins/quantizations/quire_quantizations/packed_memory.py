"""Memory for the packed weights of a model, allocated together in large pages."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from quire.machine.pages import WEIGHT_PAGES, own_pages

PIECE_BYTES = 2**26
ALIGNMENT = 64


class PackedMemory:
    """Allocator for the weights of a model; a full piece is freed with its last weight.

    Pieces that were prepared are freed together.
    """

    def __init__(self) -> None:
        self._piece: mmap.mmap | memoryview | None = None
        self._end = 0  # end of the allocated part of the piece

    def allocate(self, num_bytes: int) -> Tensor:  # [num_bytes] uint8
        """Return memory for a weight.

        Raises:
            OSError: The memory could not be allocated.
        """
        if not num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        if self._piece is None or self._end + num_bytes > len(self._piece):
            size = max(PIECE_BYTES, num_bytes)
            self._piece, self._end = WEIGHT_PAGES.take(size) or own_pages(size), 0
        weight = torch.frombuffer(self._piece, dtype=torch.uint8, count=num_bytes, offset=self._end)
        self._end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return weight
