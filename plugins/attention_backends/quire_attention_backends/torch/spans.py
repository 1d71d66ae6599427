"""A step is cut into spans of queries, and spans that fit together are computed together.

A decode row is a span of one query. A long prefill row becomes several spans, so that a span reads
only the keys that its own queries may see and a mask never grows with the prompt's square. Spans
of similar size go by the number of their keys into buckets of equal width, and a bucket is a batch,
padded to its longest span. Nothing here is done request by request: the lengths of a step are one
array, and loops run over batches.

How many buckets: n spans that lie evenly between the fewest and the most keys need a padding of P
tokens in one batch and of P / b in b of them. A batch costs as much as c tokens, so P / b + b c is
least at b = sqrt(P / c). Buckets that nobody is in cost nothing: the square root is generous with
buckets where a few spans stand far from many, and these then share few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_attention_backends.shared.attention_bounds import AttentionBounds

MAX_QUERIES = 128  # in a span; measured: 2,048 new tokens take 0.6 of the time of one mask for all

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """n spans, each of neighbouring queries of one request.

    Attributes:
        requests: `[n]`, rows of the block table.
        first_tokens: `[n]`, where the queries begin in the step.
        sizes: `[n]`, how many queries.
        ends: `[n]`, tokens that the last query sees up to, itself included.
        seen: `[n]`, the first position that a query sees.
        tile: Keys are read from a multiple of it on, and as many as a multiple of it.
    """

    requests: IntArray
    first_tokens: IntArray
    sizes: IntArray
    ends: IntArray
    seen: IntArray
    tile: int = 1

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def num_queries(self) -> int:
        """q, of the largest span; others repeat their last query."""
        return int(self.sizes.max())

    @property
    def starts(self) -> IntArray:  # [n]
        """The first position that is read."""
        return self.seen // self.tile * self.tile

    @property
    def num_keys(self) -> IntArray:  # [n]
        """Tokens that are read, those included that only fill a tile."""
        return -(-(self.ends - self.starts) // self.tile) * self.tile

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Return some of them."""
        return Spans(
            self.requests[index],
            self.first_tokens[index],
            self.sizes[index],
            self.ends[index],
            self.seen[index],
            self.tile,
        )


def cut(
    query_lens: Sequence[int], seq_lens: Sequence[int], bounds: AttentionBounds, tile: int = 1
) -> Spans:
    """Cut a step into spans of at most `MAX_QUERIES`.

    Args:
        query_lens: New tokens of each request; 0 for a row of padding.
        seq_lens: Computed and new tokens of each request.
        bounds: How far back queries see.
        tile: Keys are read in multiples of it.
    """
    new, lens = np.array(query_lens, np.int64), np.array(seq_lens, np.int64)
    num_spans = -(-new // MAX_QUERIES)
    requests = np.repeat(np.arange(len(new)), num_spans)
    place = np.arange(len(requests)) - np.repeat(num_spans.cumsum() - num_spans, num_spans)
    behind = place * MAX_QUERIES  # queries of the request before the span
    sizes = np.minimum(new[requests] - behind, MAX_QUERIES)
    first_tokens = (new.cumsum() - new)[requests] + behind
    first_positions = (lens - new)[requests] + behind
    seen = bounds.first_key(first_positions)
    return Spans(requests, first_tokens, sizes, first_positions + sizes, seen, tile)


def batches(spans: Spans, call_cost_tokens: float, max_tokens: int) -> list[Spans]:
    """Group the spans of a step.

    Args:
        spans: All of them.
        call_cost_tokens: Tokens that a query could read in the time that a further batch costs.
        max_tokens: Tokens that a batch reads, padding included; a single span may have more.

    Returns:
        Batches; the sizes within one differ by less than a factor of two.
    """
    size_classes = np.frexp(spans.sizes - 0.5)[1]  # 1 | 2 | 3, 4 | 5 to 8 | ... | 65 to 128
    return [
        batch
        for alike in _split(spans, size_classes)
        for similar in _split(alike, _buckets(alike, call_cost_tokens))
        for batch in _pieces(similar, max_tokens)
    ]


def _split(spans: Spans, classes: NDArray[np.integer]) -> list[Spans]:
    """Split by class, in rising order; spans of a class keep theirs."""
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
    """Split what would read too much into pieces of one length, as near as can be."""
    num_fitting = max(1, max_tokens // int(spans.num_keys.max()))
    if len(spans) <= num_fitting:
        return [spans]
    parts = np.array_split(np.arange(len(spans)), -(-len(spans) // num_fitting))
    return [spans.take(part) for part in parts]
