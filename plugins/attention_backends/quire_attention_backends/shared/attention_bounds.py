"""Which keys a query sees: those up to itself, within a window or a chunk where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBounds:
    """How far back the queries of a layer see.

    Attributes:
        window: Tokens, the query included; None: all.
        chunk: Only tokens of the query's own chunk of so many; None: all.
    """

    window: int | None = None
    chunk: int | None = None

    def first_key(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position that each query sees, given theirs."""
        first = np.zeros_like(queries)
        if self.window is not None:
            first = np.maximum(queries - self.window + 1, 0)
        if self.chunk is not None:
            first = np.maximum(first, queries // self.chunk * self.chunk)
        return first

    def hides(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return whether keys are hidden from queries; positions that can be broadcast."""
        is_hidden = keys > queries
        if self.window is not None:
            is_hidden |= keys <= queries - self.window
        if self.chunk is not None:
            is_hidden |= keys < queries // self.chunk * self.chunk
        return is_hidden
