"""Grouping of rows by expert: a token has one row for each of its experts.

The rows of an expert are adjacent, so its weight is read once for all of them:

    experts of tokens 0, 1, 2     [[4, 0], [0, 2], [4, 2]]
    pairs (token * k + index)      1 2 | 3 5 | 0 4
    expert                         0 0 | 2 2 | 4 4           ends [2, 2, 4, 4, 6]

A device that has some of the experts computes the rows of those; the rows of others are behind
them, undefined, and do not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows sorted by expert.

    Attributes:
        pairs: Pair of each row, `[S]` int64, with S = T * k.
        rows: Row of each pair, `[T, k]` int64; -1 if another device has the expert.
        ends: Number of rows up to and including each expert's, `[E]` int64.
    """

    pairs: Tensor
    rows: Tensor
    ends: Tensor


class GroupedRows(ABC):
    """Moving of hidden states to the rows of experts, and back.

    Args:
        experts: Experts of this device.
    """

    def __init__(self, experts: range) -> None:
        self.experts = experts

    @abstractmethod
    def group(self, experts: Tensor) -> Grouping:
        """Sort the pairs by expert, those of an expert in their order: `[T, k]` int64."""

    @abstractmethod
    def gather(
        self,
        x: Tensor,  # [T, hidden]
        grouping: Grouping,
        weights: Tensor | None,  # [T, k] float32
    ) -> Tensor:  # [S, hidden]
        """Return the tokens' hidden states by row, times the weights if there are any."""

    @abstractmethod
    def combine(
        self,
        outputs: Tensor,  # [S, hidden]
        grouping: Grouping,
        weights: Tensor | None,  # [T, k] float32
    ) -> Tensor:  # [T, hidden]
        """Return the sum of each token's rows, times the weights if there are any.

        Rows are added in the order of the token's experts, in float32.
        """


class TorchGroupedRows(GroupedRows):
    """Grouping by operators of torch."""

    def group(self, experts: Tensor) -> Grouping:
        """Sort the pairs by expert."""
        count = len(self.experts)
        local = experts.flatten() - self.experts.start
        is_own = (local >= 0) & (local < count)
        local = torch.where(is_own, local, count)
        expert_ids, pairs = local.sort(stable=True)
        rows = torch.empty_like(pairs)
        rows[pairs] = torch.arange(len(pairs), device=pairs.device)
        rows = torch.where(is_own, rows, -1).view(experts.shape)
        ids = torch.arange(count, device=pairs.device)
        return Grouping(pairs, rows, torch.searchsorted(expert_ids, ids, right=True))

    def gather(self, x: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the tokens' hidden states by row."""
        top_k = grouping.rows.shape[1]
        rows = x[grouping.pairs // top_k]
        if weights is None:
            return rows
        return (rows.float() * weights.flatten()[grouping.pairs].unsqueeze(1)).to(x.dtype)

    def combine(self, outputs: Tensor, grouping: Grouping, weights: Tensor | None) -> Tensor:
        """Return the sum of each token's rows."""
        num_tokens, top_k = grouping.rows.shape
        total = torch.zeros(
            num_tokens, outputs.shape[1], dtype=torch.float32, device=outputs.device
        )
        for index in range(top_k):
            row = grouping.rows[:, index]
            part = outputs[row.clamp(min=0)].float()
            if weights is not None:
                part = part * weights[:, index : index + 1]
            total += part.masked_fill_(row.unsqueeze(1) < 0, 0.0)
        return total.to(outputs.dtype)
