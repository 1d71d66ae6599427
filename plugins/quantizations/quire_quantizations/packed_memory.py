"""The packed weights of a model lie beside each other, so that large pages hold them."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from quire.machine.pages import own_pages

PIECE_BYTES = 2**26
ALIGNMENT = 64


class PackedMemory:
    """What the weights of one model take; a full piece is given back once no weight is in it."""

    def __init__(self) -> None:
        self._piece: mmap.mmap | None = None
        self._end = 0  # of what is taken of it

    def take(self, num_bytes: int) -> Tensor:  # [num_bytes] uint8
        """Return memory for a weight.

        Raises:
            OSError: The system has not so much.
        """
        if not num_bytes:
            return torch.empty(0, dtype=torch.uint8)
        if self._piece is None or self._end + num_bytes > len(self._piece):
            self._piece, self._end = own_pages(max(PIECE_BYTES, num_bytes)), 0
        weight = torch.frombuffer(self._piece, dtype=torch.uint8, count=num_bytes, offset=self._end)
        self._end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return weight
