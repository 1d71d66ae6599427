"""A batch of spans on the device: which rows of the cache they read, and what they may not see.

A row of the cache is D numbers: the layout [B, 2, K, S, D] seen as [B * 2 * K * S, D]. Positions
beyond a span's context gather its last token once more, so what nobody wrote is never read; the
mask hides the copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionShape
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


def first_rows(block_ids: Tensor, offsets: Tensor, shape: AttentionShape) -> Tensor:
    """Return the cache row of K of head 0 for tokens given by block and offset in the block."""
    return block_ids * (2 * shape.num_kv_heads * shape.block_size) + offsets


def build(
    spans: Sequence[Span],
    block_table: Tensor,  # [R, max_blocks]
    num_tokens: int,  # of the step
    window: int | None,
    shape: AttentionShape,
    head_rows: Tensor,  # [2, K], rows from head 0 of K to each head of K and V
    is_explicit: bool,
) -> SpanBatch:
    """Find what a batch of spans reads."""
    device = block_table.device
    size = spans[0].num_queries
    ends = [span.context_len for span in spans]
    starts = [0] * len(spans) if window is None else [max(0, e - size + 1 - window) for e in ends]
    length = max(end - start for start, end in zip(starts, ends, strict=True))  # L
    end = torch.tensor(ends, device=device).unsqueeze(1)  # [n, 1]
    keys = torch.arange(length, device=device) + torch.tensor(starts, device=device).unsqueeze(1)
    read = torch.minimum(keys, end - 1)  # [n, L]
    requests = [span.request for span in spans]
    table = block_table[torch.tensor(requests, device=device)]  # [n, max_blocks]
    return SpanBatch(
        len(spans),
        size,
        _tokens(spans, num_tokens, device),
        context_rows(table, read, shape, head_rows),
        _mask(keys, end, size, window, shape, is_explicit),
        is_explicit,
    )


def context_rows(
    block_table: Tensor,  # [n, max_blocks]
    read: Tensor,  # [n, L], positions
    shape: AttentionShape,
    head_rows: Tensor,  # [2, K]
) -> Tensor:  # [2 * n * K * L]
    """Return the cache rows of K, and then of V, at some positions of each request."""
    block_ids = block_table.gather(1, read // shape.block_size).long()
    rows = first_rows(block_ids, read % shape.block_size, shape)  # [n, L]
    return (rows[None, :, None, :] + head_rows[:, None, :, None]).view(-1)


def _tokens(spans: Sequence[Span], num_tokens: int, device: torch.device) -> Tensor | None:
    size = spans[0].num_queries
    firsts = [span.first_token for span in spans]
    if firsts == list(range(0, num_tokens, size)):
        return None
    steps = torch.arange(size, device=device)
    return (torch.tensor(firsts, device=device).unsqueeze(1) + steps).view(-1)


def _mask(
    keys: Tensor,  # [n, L], positions
    end: Tensor,  # [n, 1], context length
    size: int,
    window: int | None,
    shape: AttentionShape,
    is_explicit: bool,
) -> Tensor:
    """Return what hides keys after a query, or out of its window, broadcastable to the scores."""
    queries = end - size + torch.arange(size, device=end.device)  # [n, q], positions
    is_hidden = keys.unsqueeze(1) > queries.unsqueeze(2)  # [n, q, L]
    if window is not None:
        is_hidden |= keys.unsqueeze(1) <= queries.unsqueeze(2) - window
    mask = torch.zeros(is_hidden.shape, dtype=shape.dtype, device=end.device)
    mask = mask.masked_fill_(is_hidden, -math.inf)[:, None, :, None]  # [n, 1, q, 1, L]
    heads = shape.num_kv_heads if is_explicit else 1  # a batched product wants them spelled out
    group = shape.num_heads // shape.num_kv_heads if size > 1 else 1
    num_spans, length = keys.shape
    mask = mask.expand(num_spans, heads, size, group, length)
    return mask.reshape(num_spans, heads, size * group, length).contiguous()
