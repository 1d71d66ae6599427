"""A batch of spans on the device: which rows of the cache they read, and what they may not see.

Only rows that a query of the span may see are ever read. Keys that pad a span to the batch's length
read such a row once more, and the mask hides the copy: what nobody wrote, or others own, may be
not-a-number, and no mask hides that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.cache_rows import CacheRows
from quire_attention_backends.reach import Reach
from quire_attention_backends.spans import Span


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """n spans of q queries each, padded to L tokens of context; G = H / K.

    Attributes:
        tokens: `[n * q]` int64, where the queries stand in the step; None: it is all of the step.
        context: `[2 * n * K * L]` int64, rows of the cache: all of K, then all of V.
        mask: `[n, 1 or K, 1 or q * G, L]`, 0 or minus infinity, to be added to the scores.
        is_explicit: Whether the scores are computed by matrix products of our own.
    """

    num_spans: int
    num_queries: int
    tokens: Tensor | None
    context: Tensor
    mask: Tensor
    is_explicit: bool


@dataclass(frozen=True, slots=True)
class SpanKeys:
    """The keys of n spans, padded to L.

    Attributes:
        keys: `[n, L]`, positions.
        read: `[n, L]`, positions to read in their place: each of them is seen by a query.
        queries: `[n, q]`, positions.
    """

    keys: Tensor
    read: Tensor
    queries: Tensor


def build(
    spans: Sequence[Span],
    block_table: Tensor,  # [R, max_blocks]
    num_tokens: int,  # of the step
    reach: Reach,
    shape: AttentionShape,
    rows: CacheRows,
    is_explicit: bool,
) -> SpanBatch:
    """Find what a batch of spans reads."""
    device = block_table.device
    found = span_keys(spans, reach, device)
    first = rows.tokens(tables_of(spans, block_table), found.read)  # [n, L]
    return SpanBatch(
        len(spans),
        spans[0].num_queries,
        tokens_of(spans, num_tokens, device),
        (first[None, :, None, :] + rows.head_rows[:, None, :, None]).view(-1),
        _mask(reach.hides(found.keys.unsqueeze(1), found.queries.unsqueeze(2)), shape, is_explicit),
        is_explicit,
    )


def span_keys(spans: Sequence[Span], reach: Reach, device: torch.device, tile: int = 1) -> SpanKeys:
    """Find the keys that the queries of spans may see.

    Args:
        spans: All with the same number of queries.
        reach: How far back they see.
        device: Where the answer goes.
        tile: The keys begin and end at multiples of it.
    """
    size = spans[0].num_queries
    ends = [span.context_len for span in spans]
    seen = [reach.first_key(end - size) for end in ends]
    starts = [first // tile * tile for first in seen]
    length = max(end - start for start, end in zip(starts, ends, strict=True))
    length += -length % tile
    keys = torch.arange(length, device=device) + torch.tensor(starts, device=device).unsqueeze(1)
    end = torch.tensor(ends, device=device).unsqueeze(1)  # [n, 1]
    read = torch.minimum(keys, end - 1)
    if starts != seen:
        read = torch.maximum(read, torch.tensor(seen, device=device).unsqueeze(1))
    return SpanKeys(keys, read, end - size + torch.arange(size, device=device))


def tables_of(spans: Sequence[Span], block_table: Tensor) -> Tensor:  # [n, max_blocks]
    """Return the block table of each span."""
    return block_table[torch.tensor([s.request for s in spans], device=block_table.device)]


def tokens_of(spans: Sequence[Span], num_tokens: int, device: torch.device) -> Tensor | None:
    """Return where the queries of spans stand in a step, `[n * q]`; None: they are all of it."""
    size = spans[0].num_queries
    firsts = [span.first_token for span in spans]
    if firsts == list(range(0, num_tokens, size)):
        return None
    steps = torch.arange(size, device=device)
    return (torch.tensor(firsts, device=device).unsqueeze(1) + steps).view(-1)


def _mask(is_hidden: Tensor, shape: AttentionShape, is_explicit: bool) -> Tensor:  # [n, q, L]
    """Return what hides keys, broadcastable to the scores."""
    num_spans, size, length = is_hidden.shape
    mask = torch.zeros(is_hidden.shape, dtype=shape.dtype, device=is_hidden.device)
    mask = mask.masked_fill_(is_hidden, -math.inf)[:, None, :, None]  # [n, 1, q, 1, L]
    heads = shape.num_kv_heads if is_explicit else 1  # a batched product wants them spelled out
    group = shape.num_heads // shape.num_kv_heads if size > 1 else 1
    mask = mask.expand(num_spans, heads, size, group, length)
    return mask.reshape(num_spans, heads, size * group, length).contiguous()
