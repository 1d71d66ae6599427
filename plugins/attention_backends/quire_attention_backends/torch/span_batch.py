"""A batch of spans on the device: the cache rows to gather and the attention mask.

Only rows that a query of the span may attend to are ever read. Keys that pad a span to the batch's
length read such a row again, and the mask hides the copy. Rows that were never written, or that
belong to other requests, may hold NaN, which no mask can hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch.spans import Spans


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """n spans of q queries each, padded to L tokens of context; G = H / K.

    Attributes:
        num_spans: n.
        num_queries: q.
        context: `[2 * n * K * L]` int64, rows of the cache: all of K, then all of V.
        mask: `[n, 1 or K, 1 or q * G, L]`, 0 or -inf, to be added to the scores.
        is_explicit: True if the scores are computed by explicit matrix products, not by a fused
            kernel.
        distances: `[n, q, L]` float32, positions of the keys relative to the queries; None unless
            linear biases are to be computed.
    """

    num_spans: int
    num_queries: int
    context: Tensor
    mask: Tensor
    is_explicit: bool
    distances: Tensor | None


@dataclass(frozen=True, slots=True)
class SpanKeys:
    """The keys of n spans, padded to L.

    Attributes:
        tables: `[n, blocks]`, the block table of each span, cut to the blocks that are read.
        read: `[n, L]`, positions to read, each visible to a query of the span.
        is_hidden: `[n, q, L]`, True where a key is hidden from a query or is a padding copy.
        distances: `[n, q, L]` float32, positions of the keys relative to the queries.
    """

    tables: Tensor
    read: Tensor
    is_hidden: Tensor
    distances: Tensor


def build(
    spans: Spans,
    block_table: Tensor,  # [R, max_blocks]
    bounds: AttentionBounds,
    shape: AttentionShape,
    rows: CacheRows,
    is_explicit: bool,
    has_alibi: bool = False,
) -> SpanBatch:
    """Build the gather indices and the mask of a batch of spans."""
    found = span_keys(spans, block_table, shape.block_size, bounds)
    first = rows.of_positions(found.tables, found.read)  # [n, L]
    return SpanBatch(
        len(spans),
        spans.num_queries,
        (first[None, :, None, :] + rows.head_rows[:, None, :, None]).view(-1),
        _mask(found.is_hidden, shape, is_explicit),
        is_explicit,
        found.distances if has_alibi else None,
    )


def span_keys(
    spans: Spans, block_table: Tensor, block_size: int, bounds: AttentionBounds
) -> SpanKeys:
    """Return the keys that the queries of spans may attend to."""
    device = block_table.device
    firsts = spans.ends - spans.sizes
    numbers = np.stack((spans.requests, spans.starts, spans.first_seen, firsts, spans.ends - 1))
    requests, start, first_seen, first, last = torch.from_numpy(numbers).to(device).unsqueeze(2)
    keys = start + torch.arange(int(spans.num_keys.max()), device=device)
    num_blocks = -(-int(spans.ends.max()) // block_size)
    queries = torch.minimum(first + torch.arange(spans.num_queries, device=device), last)
    return SpanKeys(
        block_table[:, :num_blocks].index_select(0, requests.view(-1)),
        keys.clamp(first_seen, last),
        bounds.hidden_mask(keys.unsqueeze(1), queries.unsqueeze(2)),
        (keys.unsqueeze(1) - queries.unsqueeze(2)).float(),
    )


def _mask(is_hidden: Tensor, shape: AttentionShape, is_explicit: bool) -> Tensor:  # [n, q, L]
    """Return the additive mask, broadcastable to the scores."""
    num_spans, size, length = is_hidden.shape
    mask = torch.zeros(is_hidden.shape, dtype=shape.dtype, device=is_hidden.device)
    mask = mask.masked_fill_(is_hidden, -math.inf)[:, None, :, None]  # [n, 1, q, 1, L]
    heads = shape.num_kv_heads if is_explicit else 1  # a batched product does not broadcast heads
    group = shape.num_heads // shape.num_kv_heads if size > 1 else 1
    mask = mask.expand(num_spans, heads, size, group, length)
    return mask.reshape(num_spans, heads, size * group, length).contiguous()
