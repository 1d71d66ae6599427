"""Grouping of rows by expert with Triton kernels; loads Triton."""

from __future__ import annotations

from torch import Tensor

from quire.kernels.expert_rows import combine_rows, gather_rows, group_rows
from quire.layers.moe.grouping import GroupedRows, Grouping


class TritonGroupedRows(GroupedRows):
    """Grouping of rows in a fixed number of launches, without waiting for the device."""

    def group(self, experts: Tensor) -> Grouping:
        """Sort the pairs by expert."""
        return Grouping(*group_rows(experts, self.experts))

    def gather(self, x: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the tokens' hidden states by row."""
        return gather_rows(x, grouping.pairs, grouping.ends, weights)

    def combine(self, outputs: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the sum of each token's rows."""
        return combine_rows(outputs, grouping.rows, weights)
