"""How large the tiles of the paged kernels are, from the head size and the element types.

Decode is bound by memory. M is 16, the least that a tensor core takes: a tile of 64 tokens of 128
numbers costs it about 0.1 us on an H200 and its 32 KiB cost a multiprocessor's share of the
bandwidth 0.9 us, so even a group of one head gains nothing from leaving the tensor cores. To keep
4.8 TB/s busy for a latency of 0.7 us takes 26 KiB in flight on each of 132 multiprocessors. A tile
of K is 16 KiB, at most 64 tokens (so that a batch of one request still has a program for each
multiprocessor at 1k tokens); with 3 stages two tiles of K and V are under way in each program, and
three programs fit on a multiprocessor: while one waits for its first page, others read.

A cache of one byte a number is decoded in registers, so heads from 64 on take 8 warps instead of 4,
and int8 heads beyond 128 half a tile.

A prompt is bound by arithmetic: 128 rows by 64 tokens and 8 warps, so that a warp group multiplies
64 rows and K and V are read from the L2 cache half as often as with 64. The answer stays in
registers, so heads beyond 128 take 32 tokens, and 64 rows where the operands of a product come from
registers too: before 9.0, and where K and V are decoded. Before 9.0 heads of 128 take 32 tokens
where they are decoded or padded, or their group is no power of two. float32 is multiplied in three
tf32 parts, 16 rows at a time, for exactness and not for speed; heads beyond 128 spill in
batch-invariant mode.

In batch-invariant mode both kernels have the same sizes, so that a row's bits are made by the same
instructions: 64 rows still leave decode bound by memory. 32 where 64 would spill.

The interpreter takes as few rows as there are, or 64 of a prompt: its time goes into operations,
and products there are made row by row where a row's place must not matter.

All this is arithmetic and what the compiler says, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.runtime import driver

from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_cache import DTYPE_BYTES
from quire.machine.machine import interprets_kernels

MIN_ROWS = 16
K_TILE_BYTES = 2**14
MIN_TOKENS, MAX_TOKENS = 16, 64
WIDE = 128  # numbers a head; beyond, an answer leaves fewer registers


@dataclass(frozen=True, slots=True)
class TileSizes:
    """How a kernel is launched.

    Attributes:
        rows: M, queries times query heads of a key/value head.
        tokens: N, of K and V.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


def padded(head_dim: int) -> int:
    """Return DP."""
    return 1 << (head_dim - 1).bit_length()


def group_size(shape: AttentionShape) -> int:
    """Return G."""
    return shape.num_heads // shape.num_kv_heads


def decode_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tiles of requests with one token, or a few."""
    if interprets_kernels():
        return TileSizes(_rows(shape, 1 if shape.batch_invariant else 4), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        num_stages = 2 if shape.batch_invariant else 3
        return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), 8, num_stages)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    num_warps = 8 if _is_decoded(shape) and padded(shape.head_dim) >= 64 else 4
    return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), num_warps, 3)


def prompt_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tiles of requests with more tokens."""
    if interprets_kernels():
        return TileSizes(_rows(shape, 64), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), 8, 2)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    width, is_decoded = padded(shape.head_dim), _is_decoded(shape)
    if width > WIDE:
        rows = 128 if _has_warp_groups() and not is_decoded else 64
        return TileSizes(_rows(shape, rows), 32, 8, 2)
    is_masked = shape.head_dim != width or group_size(shape).bit_count() > 1
    is_tight = width == WIDE and (is_decoded or is_masked) and not _has_warp_groups()
    return TileSizes(_rows(shape, 128), 32 if is_tight else 64, 8, 3)


def _invariant_sizes(shape: AttentionShape) -> TileSizes:
    if padded(shape.head_dim) > WIDE:
        return TileSizes(_rows(shape, 32), 32, 8, 2)
    rows, tokens = (32, 32) if _is_decoded(shape) else (64, 64)
    return TileSizes(_rows(shape, rows), tokens, 8, 3)


def _is_decoded(shape: AttentionShape) -> bool:
    """Whether K and V pass through registers on their way to a product."""
    return DTYPE_BYTES[shape.kv_dtype] == 1


def _has_warp_groups() -> bool:
    """Whether products of 64 rows read their operands from shared memory: from 9.0 on."""
    return int(driver.active.get_current_target().arch) >= 90


def _rows(shape: AttentionShape, least: int) -> int:
    return max(least, 1 << (group_size(shape) - 1).bit_length())


def _tokens(shape: AttentionShape) -> int:
    """Return the tokens of K_TILE_BYTES, as they are kept and as they are multiplied."""
    itemsize = max(DTYPE_BYTES[shape.kv_dtype], shape.dtype.itemsize)
    tokens = K_TILE_BYTES // (padded(shape.head_dim) * itemsize)
    if _is_decoded(shape) and padded(shape.head_dim) > WIDE:
        tokens //= 2
    return max(MIN_TOKENS, min(MAX_TOKENS, tokens))
