"""How large the tiles of the paged kernels are, from the head size and the element types.

Decode is bound by memory. M is 16, the least that a tensor core takes: a tile of 64 tokens of 128
numbers costs it about 0.1 us on an H200 and its 32 KiB cost a multiprocessor's share of the
bandwidth 0.9 us, so even a group of one head gains nothing from leaving the tensor cores. To keep
4.8 TB/s busy for a latency of 0.7 us takes 26 KiB in flight on each of 132 multiprocessors. A tile
of K is 16 KiB, at most 64 tokens (so that a batch of one request still has a program for each
multiprocessor at 1k tokens); with 3 stages two tiles of K and V are under way in each program, and
three programs fit on a multiprocessor: while one waits for its first page, others read.

A cache of one byte a number is decoded in registers, so heads from 64 on take 8 warps instead of 4.

A prompt is bound by arithmetic: 128 rows by 64 tokens and 8 warps, so that a warp group multiplies
64 rows and K and V are read from the L2 cache half as often as with 64. The answer stays in
registers, so heads beyond 128 take 32 tokens, and 64 rows where products take their operands from
registers too. float32 is multiplied without tensor cores, for exactness and not for speed: a row of
K lies in the registers of each thread that multiplies it, unless it comes from shared memory as it
is, so float32 queries over a narrower cache may spill.

In batch-invariant mode both kernels have the same sizes, so that a row's bits are made by the same
instructions: 64 rows still leave decode bound by memory. 32 where 64 would spill.

All this is arithmetic and what the compiler says, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from triton.runtime import driver

from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_cache import DTYPE_BYTES
from quire.machine import interprets_kernels

MIN_ROWS = 16
K_TILE_BYTES = 2**14
MIN_TOKENS, MAX_TOKENS = 16, 64
PROMPT_ROWS_FLOAT32 = 16  # more would not fit in registers without tensor cores
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
    return int(triton.next_power_of_2(head_dim))


def group_size(shape: AttentionShape) -> int:
    """Return G."""
    return shape.num_heads // shape.num_kv_heads


def decode_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tiles of requests with one token, or a few."""
    if interprets_kernels():
        return TileSizes(_rows(shape, 1), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        least = PROMPT_ROWS_FLOAT32 if shape.batch_invariant else 4
        return TileSizes(_rows(shape, least), _tokens(shape), 8, 3)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    is_decoded = DTYPE_BYTES[shape.kv_dtype] == 1 and padded(shape.head_dim) >= 64
    return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), 8 if is_decoded else 4, 3)


def prompt_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tiles of requests with more tokens."""
    if interprets_kernels():
        rows = 16 if shape.batch_invariant else 64
        return TileSizes(_rows(shape, rows), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        return TileSizes(_rows(shape, PROMPT_ROWS_FLOAT32), _tokens(shape), 8, 2)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    if padded(shape.head_dim) <= WIDE:
        return TileSizes(_rows(shape, 128), 64, 8, 3)
    return TileSizes(_rows(shape, 128 if _has_warp_groups() else 64), 32, 8, 2)


def _invariant_sizes(shape: AttentionShape) -> TileSizes:
    if padded(shape.head_dim) > WIDE:
        return TileSizes(_rows(shape, 32), 32, 8, 2)
    rows = 32 if DTYPE_BYTES[shape.kv_dtype] == 1 else 64
    return TileSizes(_rows(shape, rows), 64, 8, 3)


def _has_warp_groups() -> bool:
    """Whether products of 64 rows read their operands from shared memory: from 9.0 on."""
    return int(driver.active.get_current_target().arch) >= 90


def _rows(shape: AttentionShape, least: int) -> int:
    return max(least, int(triton.next_power_of_2(group_size(shape))))


def _tokens(shape: AttentionShape) -> int:
    """Return the tokens of K_TILE_BYTES, as they are kept and as they are multiplied."""
    itemsize = max(DTYPE_BYTES[shape.kv_dtype], shape.dtype.itemsize)
    return max(MIN_TOKENS, min(MAX_TOKENS, K_TILE_BYTES // (padded(shape.head_dim) * itemsize)))
