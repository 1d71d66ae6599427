"""Attention bounds: the keys that a query may attend to, limited by a window or a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from quire.interfaces.attention import AttentionLayerParams


@dataclass(frozen=True, slots=True)
class AttentionBounds:
    """Limits on how far back the queries of a layer attend.

    Attributes:
        window: Sliding window in tokens, the query included; None: no window.
        chunk: Chunk size in tokens; a query attends only within its own chunk; None: no chunks.
    """

    window: int | None = None
    chunk: int | None = None

    @classmethod
    def of(cls, layer: AttentionLayerParams) -> AttentionBounds:
        """Return the bounds of a layer."""
        return cls(layer.sliding_window, layer.attention_chunk)

    def first_key(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position that each query attends to, given the queries' positions."""
        first = np.zeros_like(queries)
        if self.window is not None:
            first = np.maximum(queries - self.window + 1, 0)
        if self.chunk is not None:
            first = np.maximum(first, queries // self.chunk * self.chunk)
        return first

    def hidden_mask(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return True where a key is hidden from a query.

        Args:
            keys: Positions of the keys.
            queries: Positions of the queries, broadcastable with `keys`.
        """
        is_hidden = keys > queries
        if self.window is not None:
            is_hidden |= keys <= queries - self.window
        if self.chunk is not None:
            is_hidden |= keys < queries // self.chunk * self.chunk
        return is_hidden
