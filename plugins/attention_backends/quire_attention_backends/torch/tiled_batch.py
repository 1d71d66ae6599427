"""Batch-invariant attention: the output of a query depends only on the query and its context.

Keys are cut into tiles at fixed positions, multiples of 128, independent of chunks and batches. The
largest score of a row does not depend on the order; the weights are computed elementwise, and the
sums are accumulated tile by tile in the order of positions. A tile that is hidden from a row adds
exact zeros. Query rows are padded to multiples of 8, for which the matrix library computes every
row in the same way. That is a property of the library on this machine, so `check_rows` tests it
before the first step.

    row of a query at 300    tile 0..127   tile 128..255   tile 256..383
                             w0 @ v0     + w1 @ v1       + w2 @ v2        w2 = 0 from 301 on

16-bit inputs are converted to float32 first, and the output is rounded once at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.attention import AttentionShape
from quire.layers.linear.row_tiles import refusal, same_bits
from quire.layers.seeded_generator import seeded_generator
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch.span_batch import span_keys
from quire_attention_backends.torch.spans import MAX_QUERIES, Spans

TILE = 128  # keys
ROWS = 8  # query rows are padded to a multiple


@dataclass(frozen=True, slots=True)
class TiledBatch:
    """n spans of q queries each, over c tiles; M = q * G rounded up to a multiple of 8.

    Attributes:
        num_spans: n.
        num_queries: q.
        context: `[2 * c * n * K * 128]` int64, rows of the cache: all of K, then all of V.
        mask: `[c, n, 1, M, 128]` float32, 0 or -inf, to be added to the scores.
        distances: `[n, q, c * 128]` float32, positions of the keys relative to the queries; None
            unless linear biases are to be computed.
    """

    num_spans: int
    num_queries: int
    context: Tensor
    mask: Tensor
    distances: Tensor | None


def build_tiled(
    spans: Spans,  # cut with tile `TILE`
    block_table: Tensor,  # [R, max_blocks]
    bounds: AttentionBounds,
    shape: AttentionShape,
    rows: CacheRows,
    has_alibi: bool = False,
) -> TiledBatch:
    """Build the gather indices and the mask of a batch of spans."""
    num_spans, size = len(spans), spans.num_queries
    found = span_keys(spans, block_table, shape.block_size, bounds)
    first = rows.of_positions(found.tables, found.read)  # [n, c * 128]
    first = first.view(num_spans, -1, TILE).transpose(0, 1)  # [c, n, 128]
    context = first[None, :, :, None, :] + rows.head_rows[:, None, None, :, None]
    hidden = found.is_hidden  # [n, q, c * 128]
    mask = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    mask.masked_fill_(hidden, -math.inf)
    mask = mask.view(num_spans, size, -1, TILE).permute(2, 0, 1, 3)  # [c, n, q, 128]
    mask = mask.repeat_interleave(shape.num_heads // shape.num_kv_heads, 2)
    mask = functional.pad(mask, (0, 0, 0, -mask.shape[2] % ROWS)).unsqueeze(2)
    distances = found.distances if has_alibi else None
    return TiledBatch(num_spans, size, context.reshape(-1), mask, distances)


def attend_in_tiles(
    q: Tensor,  # [n * K, q * G, D]
    gathered: Tensor,  # [2 * c * n * K * 128, D]
    mask: Tensor,  # [c, n, 1, M, 128]
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None = None,  # [n * K, q * G, 1] float32
    biases: Tensor | None = None,  # [n, K, q * G, c * 128] float32
) -> Tensor:  # [n * K, q * G, D] float32
    """Attend; each row of the output has the same bits in every batch."""
    num_tiles, num_spans, _, num_rows, _ = mask.shape
    num_products, num_query_rows, head_dim = q.shape
    k, v = gathered.float().view(2, num_tiles, num_products, TILE, head_dim)
    q = functional.pad(q.float(), (0, 0, 0, num_rows - num_query_rows))
    scores = q.new_empty(num_tiles, num_products, num_rows, TILE)
    for tile in range(num_tiles):
        torch.bmm(q, k[tile].transpose(1, 2), out=scores[tile])
    scores.mul_(scale)
    if soft_cap is not None:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    by_span = scores.view(num_tiles, num_spans, -1, num_rows, TILE).add_(mask)
    if biases is not None:
        by_tile = biases.view(*biases.shape[:3], num_tiles, TILE).movedim(-2, 0)
        by_span[:, :, :, :num_query_rows].add_(by_tile)
    largest = scores.amax((0, 3), keepdim=True)  # [1, n * K, M, 1]
    if sinks is not None:
        sinks = functional.pad(sinks, (0, 0, 0, num_rows - num_query_rows))
        largest = torch.maximum(largest, sinks)
    weights = scores.sub_(largest).exp_()
    sums = weights.sum(-1, keepdim=True)  # [c, n * K, M, 1]
    out, total = torch.bmm(weights[0], v[0]), sums[0]
    for tile in range(1, num_tiles):
        out.add_(torch.bmm(weights[tile], v[tile]))
        total = total + sums[tile]
    if sinks is not None:
        total = total + (sinks - largest[0]).exp_()
    return out.div_(total)[:, :num_query_rows]


def check_rows(shape: AttentionShape) -> None:
    """Check that a row's bits do not depend on its index, its neighbours or the batch size.

    Raises:
        RefusedError: They do with the matrix library of this machine.
    """
    group = shape.num_heads // shape.num_kv_heads
    max_rows = MAX_QUERIES * group
    random = seeded_generator(0)
    num_products, num_tiles = 3, 2
    q = torch.randn(num_products, max_rows, shape.head_dim, generator=random).to(shape.device)
    k_and_v = torch.randn(2, num_tiles, num_products, TILE, shape.head_dim, generator=random)
    k_and_v = k_and_v.to(shape.device)
    expected = _attend_sample(q, k_and_v, slice(0, num_products), slice(0, max_rows))
    for count in range(1, num_products + 1):
        for num_rows in (1, group, 2 * group, 3 * group, 11 * group, max_rows // 2, max_rows):
            for start in {0, min(1, max_rows - num_rows), max_rows - num_rows}:
                some, rows = slice(0, count), slice(start, start + num_rows)
                if not same_bits(_attend_sample(q, k_and_v, some, rows), expected[some, rows]):
                    raise refusal("attention", torch.float32)


def _attend_sample(q: Tensor, k_and_v: Tensor, products: slice, rows: slice) -> Tensor:
    some, num_tiles = q[products, rows], k_and_v.shape[1]
    num_rows = some.shape[1] + -some.shape[1] % ROWS
    shape = (num_tiles, 1, 1, num_rows, TILE)
    mask = torch.zeros(shape, dtype=torch.float32, device=q.device)
    gathered = k_and_v[:, :, products].reshape(-1, q.shape[2])
    return attend_in_tiles(some.contiguous(), gathered, mask, 0.1, None)
