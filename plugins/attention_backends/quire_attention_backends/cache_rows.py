"""The cache as rows of D numbers: the pages `[2, K, S, D]`, one after the other.

page 0                                  page 1
| K of head 0: S rows | ... | V ... | padding | K of head 0 ...
0                     S                       page_rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quire.interfaces.attention import AttentionShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Where tokens lie in a cache.

    Attributes:
        block_size: S.
        page_rows: From a block to the next.
        head_rows: `[2, K]`, rows from head 0 of K to each head of K and V.
    """

    block_size: int
    page_rows: int
    head_rows: Tensor

    @classmethod
    def of(cls, kv_cache: Tensor, shape: AttentionShape) -> CacheRows:
        """Read them off a view `[B, 2, K, S, D]`, whose pages may be padded."""
        heads = torch.arange(2 * shape.num_kv_heads, device=kv_cache.device)
        head_rows = heads.view(2, -1) * shape.block_size
        return cls(shape.block_size, kv_cache.stride(0) // shape.head_dim, head_rows)

    def flat(self, kv_cache: Tensor) -> Tensor:
        """Return the cache as `[rows, D]`, the padding between pages included."""
        num_blocks, sides, heads, size, head_dim = kv_cache.shape
        num_rows = (num_blocks - 1) * self.page_rows + sides * heads * size
        return kv_cache.as_strided((num_rows, head_dim), (head_dim, 1))

    def written(self, slot_mapping: Tensor) -> Tensor:  # [T] -> [2 * T * K]
        """Return the rows of K, and then of V, that belong to slots of tokens."""
        first = self._first(slot_mapping // self.block_size, slot_mapping % self.block_size)
        return (first[None, :, None] + self.head_rows[:, None, :]).view(-1)

    def tokens(self, block_table: Tensor, positions: Tensor) -> Tensor:  # [n, M], [n, L] -> [n, L]
        """Return the row of K of head 0 at some positions of each request."""
        block_ids = block_table.gather(1, positions // self.block_size).long()
        return self._first(block_ids, positions % self.block_size)

    def _first(self, block_ids: Tensor, offsets: Tensor) -> Tensor:
        return block_ids * self.page_rows + offsets
