"""Permutation of a step's queries into its batches and of the outputs back, by one gather each.

step          | a | b0 b1 b2 | c | padding |
queries       | a c | b0 b1 b2 b2 |        two batches; a shorter span repeats its last query
outputs       | a c | b0 b1 b2 b2 | any |
output index  | 0 | 2 3 5 | 1 | 6 |        the last of several copies, whose outputs are equal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_attention_backends.torch.spans import IntArray, Spans


@dataclass(frozen=True, slots=True)
class QueryOrder:
    """Order of the queries in the batches of a step; T tokens in the step, N queries in batches.

    Attributes:
        counts: Number of queries in each batch, repeated ones included.
        query_index: `[N]` int64, token of each query; None: all tokens of the step in its order.
        output_index: `[T]` int64, index of each token's output among the outputs of all batches, N
            for padding tokens; None: the order of the step.
    """

    counts: list[int]
    query_index: Tensor | None
    output_index: Tensor | None

    @classmethod
    def of(cls, batches: Sequence[Spans], num_tokens: int, device: torch.device) -> QueryOrder:
        """Build the order of a step of `num_tokens`, padding included."""
        index_by_batch = [_query_index(batch) for batch in batches]
        counts = [len(each) for each in index_by_batch]
        query_index = np.concatenate([np.zeros(0, np.int64), *index_by_batch])
        if np.array_equal(query_index, np.arange(num_tokens)):
            return cls(counts, None, None)
        output_index = np.full(num_tokens, len(query_index))
        # For a repeated index numpy keeps the last value.
        output_index[query_index] = np.arange(len(query_index))
        return cls(
            counts,
            torch.from_numpy(query_index).to(device),
            torch.from_numpy(output_index).to(device),
        )

    def split_queries(self, q: Tensor) -> tuple[Tensor, ...]:  # [T, ...] -> [n * q, ...] each
        """Return the queries of each batch."""
        rows = q if self.query_index is None else q.index_select(0, self.query_index)
        return torch.split(rows, self.counts)

    def join_outputs(self, outputs: Sequence[Tensor]) -> Tensor:  # [n * q, ...] each -> [T, ...]
        """Return the outputs of all batches in the step's order; padding rows are undefined."""
        if self.output_index is not None:
            outputs = [*outputs, outputs[0].new_empty(1, *outputs[0].shape[1:])]
            return torch.cat(outputs).index_select(0, self.output_index)
        return outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))


def _query_index(spans: Spans) -> IntArray:  # [n * q]
    within = np.minimum(np.arange(spans.num_queries), spans.sizes[:, None] - 1)
    return (spans.first_tokens[:, None] + within).ravel()
