"""A KV cache addressed as rows of D elements: the pages `[2, K, S, D]`, one after the other.

page 0                                  page 1
| K of head 0: S rows | ... | V ... | padding | K of head 0 ...
0                     S                       page_rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.shared.kv_layout import Pages

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Row indices of tokens in a cache.

    Attributes:
        block_size: S.
        page_rows: Number of rows from one block to the next, padding included.
        head_rows: `[2, K]`, row offsets from head 0 of K to each head of K and V.
    """

    block_size: int
    page_rows: int
    head_rows: Tensor

    @classmethod
    def of(cls, pages: Pages, shape: AttentionShape) -> CacheRows:
        """Return the row layout of pages, which may be padded.

        Padding counts towards `page_rows`, and so do the scales behind the elements of an int8
        page; no row index points into either.
        """
        heads = torch.arange(2 * shape.num_kv_heads, device=pages.data.device)
        head_rows = heads.view(2, -1) * shape.block_size
        return cls(shape.block_size, pages.data.stride(0) // shape.head_dim, head_rows)

    def flat(self, data: Tensor) -> Tensor:
        """Return pages `[B, 2, K, S, D]` as `[rows, D]`, the padding between pages included."""
        num_blocks, sides, heads, size, head_dim = data.shape
        num_rows = (num_blocks - 1) * self.page_rows + sides * heads * size
        return data.as_strided((num_rows, head_dim), (head_dim, 1))

    def of_slots(self, slot_mapping: Tensor) -> Tensor:  # [T] -> [2 * T * K]
        """Return the rows of K and then the rows of V of the given slots."""
        block_ids = slot_mapping // self.block_size
        first = slot_mapping + block_ids * (self.page_rows - self.block_size)
        return (first[None, :, None] + self.head_rows[:, None, :]).view(-1)

    def of_positions(self, block_table: Tensor, positions: Tensor) -> Tensor:
        """Return the row of K of head 0 at some positions of each request.

        Args:
            block_table: `[n, M]`, block ids of each request.
            positions: `[n, L]`, positions in each request.

        Returns:
            `[n, L]`, row indices.
        """
        first = torch.arange(block_table.shape[1], device=block_table.device) * self.block_size
        offsets = block_table.long() * self.page_rows - first  # row minus position, per block
        return offsets.gather(1, positions // self.block_size) + positions
