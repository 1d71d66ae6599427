"""Grouping of rows by expert with native kernels, for CPUs."""

from __future__ import annotations

from torch import Tensor

from quire.layers.moe.grouping import GroupedRows, Grouping
from quire.native.layer_kernels.cpu_moe import RowGroups


class NativeGroupedRows(GroupedRows):
    """Grouping of float32 rows by compiled functions."""

    def __init__(self, experts: range) -> None:
        super().__init__(experts)
        self._groups = RowGroups(experts)

    def group(self, experts: Tensor) -> Grouping:
        """Sort the pairs by expert."""
        return Grouping(*self._groups.group(experts))

    def gather(self, x: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the tokens' hidden states by row."""
        return self._groups.gather(x, grouping.pairs, grouping.ends, weights)

    def combine(self, outputs: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the sum of each token's rows."""
        return self._groups.combine(outputs, grouping.rows, weights)
