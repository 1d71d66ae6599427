"""Which keys a query sees: those up to itself, within a window or a chunk where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back the queries of a layer see.

    Attributes:
        window: Tokens, the query included; None: all.
        chunk: Only tokens of the query's own chunk of so many; None: all.
    """

    window: int | None = None
    chunk: int | None = None

    def first_key(self, query: int) -> int:
        """Return the first position that a query at a position sees."""
        first = 0 if self.window is None else max(0, query - self.window + 1)
        return first if self.chunk is None else max(first, query // self.chunk * self.chunk)

    def hides(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return whether keys are hidden from queries; positions that can be broadcast."""
        is_hidden = keys > queries
        if self.window is not None:
            is_hidden |= keys <= queries - self.window
        if self.chunk is not None:
            is_hidden |= keys < queries // self.chunk * self.chunk
        return is_hidden
