"""Spans of queries: cuts a step into spans and groups spans of similar lengths into batches.

A decode row is a span of one query. A long prefill row becomes several spans, so that a span reads
only the keys that its own queries may attend to and masks do not grow quadratically with the
prompt. Spans of similar size are sorted by their number of keys into buckets of equal width. A
bucket is a batch, padded to its longest span. The lengths of a step are one array and loops run
over batches; there is no loop over requests.

Number of buckets: n spans evenly distributed between the fewest and the most keys need P tokens of
padding in one batch and P / b in b batches. A batch costs as much as c tokens, so P / b + b c is
minimal at b = sqrt(P / c). Empty buckets cost nothing. Where a few spans are far longer or shorter
than the others, the square root gives many buckets, of which few are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_attention_backends.shared.attention_bounds import AttentionBounds

MAX_QUERIES = 128  # per span; measured: 2,048 new tokens take 0.6 of the time of a single mask

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """n spans, each of neighbouring queries of one request.

    Attributes:
        requests: `[n]`, rows of the block table.
        first_tokens: `[n]`, index of the first query in the step.
        sizes: `[n]`, number of queries.
        ends: `[n]`, end of the keys: the position of the last query plus 1.
        first_seen: `[n]`, first position that a query attends to.
        tile: Granularity of the keys that are read: starts and numbers are multiples of it.
    """

    requests: IntArray
    first_tokens: IntArray
    sizes: IntArray
    ends: IntArray
    first_seen: IntArray
    tile: int = 1

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_queries(self) -> int:
        """q, the size of the largest span; shorter ones repeat their last query."""
        return int(self.sizes.max())

    @property
    def starts(self) -> IntArray:  # [n]
        """The first position that is read."""
        return self.first_seen // self.tile * self.tile

    @property
    def num_keys(self) -> IntArray:  # [n]
        """Number of tokens that are read, including those that only fill a tile."""
        return -(-(self.ends - self.starts) // self.tile) * self.tile

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Return the spans selected by an index or a mask."""
        return Spans(
            self.requests[index],
            self.first_tokens[index],
            self.sizes[index],
            self.ends[index],
            self.first_seen[index],
            self.tile,
        )


def cut(
    query_lens: Sequence[int], seq_lens: Sequence[int], bounds: AttentionBounds, tile: int = 1
) -> Spans:
    """Cut a step into spans of at most `MAX_QUERIES`.

    Args:
        query_lens: Number of new tokens of each request; 0 for a padding row.
        seq_lens: Number of computed and new tokens of each request.
        bounds: Attention bounds of the queries.
        tile: Granularity of the keys that are read.
    """
    new, lens = np.array(query_lens, np.int64), np.array(seq_lens, np.int64)
    num_spans = -(-new // MAX_QUERIES)
    requests = np.repeat(np.arange(len(new)), num_spans)
    span_index = np.arange(len(requests)) - np.repeat(num_spans.cumsum() - num_spans, num_spans)
    queries_before = span_index * MAX_QUERIES  # queries of the request before the span
    sizes = np.minimum(new[requests] - queries_before, MAX_QUERIES)
    first_tokens = (new.cumsum() - new)[requests] + queries_before
    first_positions = (lens - new)[requests] + queries_before
    first_seen = bounds.first_key(first_positions)
    return Spans(requests, first_tokens, sizes, first_positions + sizes, first_seen, tile)


def batches(spans: Spans, call_cost_tokens: float, max_tokens: int) -> list[Spans]:
    """Group the spans of a step into batches.

    Args:
        spans: All spans of the step.
        call_cost_tokens: Cost of one more batch, as a number of tokens that a query could read in
            the same time.
        max_tokens: Maximum number of tokens that a batch reads, padding included; a batch of one
            span may exceed it.

    Returns:
        Batches; the sizes within one differ by less than a factor of two.
    """
    size_classes = np.frexp(spans.sizes - 0.5)[1]  # 1 | 2 | 3, 4 | 5 to 8 | ... | 65 to 128
    return [
        batch
        for same_size in _split(spans, size_classes)
        for similar in _split(same_size, _buckets(same_size, call_cost_tokens))
        for batch in _pieces(similar, max_tokens)
    ]


def _split(spans: Spans, classes: NDArray[np.integer]) -> list[Spans]:
    """Split by class, in ascending order; spans of a class keep their order."""
    if not len(spans):
        return []
    if (classes == classes[0]).all():
        return [spans]
    order = np.argsort(classes, kind="stable")
    borders = np.flatnonzero(np.diff(classes[order])) + 1
    return [spans.take(part) for part in np.split(order, borders)]


def _buckets(spans: Spans, call_cost_tokens: float) -> IntArray:  # [n]
    """Return the bucket of each span, 0 for those with the most keys."""
    num_keys = spans.num_keys
    missing: IntArray = num_keys.max() - num_keys  # keys that pad a span
    padding = int(missing.sum()) * spans.num_queries
    num_buckets = max(1, round(math.sqrt(padding / call_cost_tokens)))
    bucket: IntArray = missing * num_buckets // (missing.max() + 1)
    return bucket


def _pieces(spans: Spans, max_tokens: int) -> list[Spans]:
    """Split a batch that would read too much into pieces of nearly equal length."""
    num_fitting = max(1, max_tokens // int(spans.num_keys.max()))
    if len(spans) <= num_fitting:
        return [spans]
    parts = np.array_split(np.arange(len(spans)), -(-len(spans) // num_fitting))
    return [spans.take(part) for part in parts]
