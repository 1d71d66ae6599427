"""Tile sizes of the paged kernels, chosen by head_dim, element types and GPU generation.

Decode is memory-bound. M is 16, the minimum of a tensor core: a tile of 64 tokens with head_dim 128
takes about 0.1 us there on an H200, and reading its 32 KiB takes 0.9 us at one multiprocessor's
fraction of the bandwidth. So even a group of one head gains nothing from avoiding the tensor cores.
To keep 4.8 TB/s busy at a latency of 0.7 us, 26 KiB must be in flight on each of 132
multiprocessors. A tile of K is 16 KiB and at most 64 tokens (so that a batch of one request has a
program for each multiprocessor at 1k tokens). With 3 stages, two tiles of K and V are in flight in
each program, and three programs fit on a multiprocessor: while one waits for its first page, the
others read.

A cache with one byte per element is decoded in registers, so a head_dim from 64 on takes 8 warps
instead of 4, and a head_dim above 128 half a tile.

Prefill is compute-bound: 128 rows by 64 tokens and 8 warps, so that a warp group multiplies 64 rows
and K and V are read from the L2 cache half as often as with 64 rows. The output stays in registers,
so a head_dim above 128 takes 32 tokens; it takes 64 rows if the operands of a product come from
registers too, which is so before compute capability 9.0 and for decoded K and V. Before 9.0 a width
of 128 takes 32 tokens if K and V are decoded, the heads are padded to it, or the group is not a
power of two. float32 is multiplied in three tf32 parts, 16 rows at a time, for accuracy and not for
speed; a head_dim above 128 spills in batch-invariant mode.

In batch-invariant mode both kernels have the same sizes, so that a row is computed by the same
instructions in both. Decode is still memory-bound with 64 rows; the number is 32 where 64 would
spill.

The interpreter takes as few rows as there are, or 64 of a prompt, because its time depends on the
number of operations. Its products are computed row by row in batch-invariant mode.

All sizes are calculated or follow from compiler output; they are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.runtime import driver

from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_cache import DTYPE_BYTES
from quire.machine.machine import interprets_kernels
from quire_attention_backends.shared.launch_sizes import next_power_of_two

MIN_ROWS = 16
K_TILE_BYTES = 2**14
MIN_TOKENS, MAX_TOKENS = 16, 64
WIDE = 128  # head_dim above which the output leaves fewer registers


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Tile sizes and launch options of a kernel.

    Attributes:
        rows: M, queries times query heads of a key/value head.
        tokens: N, tokens of K and V.
        num_warps: Number of warps of a program.
        num_stages: Number of stages of the software pipeline.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


def group_size(shape: AttentionShape) -> int:
    """Return G, the number of query heads per key/value head."""
    return shape.num_heads // shape.num_kv_heads


def decode_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tile sizes for requests with one token or a few."""
    if interprets_kernels():
        return TileSizes(_rows(shape, 1 if shape.batch_invariant else 4), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        num_stages = 2 if shape.batch_invariant else 3
        return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), 8, num_stages)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    num_warps = 8 if _is_decoded(shape) and next_power_of_two(shape.head_dim) >= 64 else 4
    return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), num_warps, 3)


def prompt_sizes(shape: AttentionShape) -> TileSizes:
    """Return the tile sizes for requests with more tokens."""
    if interprets_kernels():
        return TileSizes(_rows(shape, 64), _tokens(shape), 4, 1)
    if shape.dtype == torch.float32:
        return TileSizes(_rows(shape, MIN_ROWS), _tokens(shape), 8, 2)
    if shape.batch_invariant:
        return _invariant_sizes(shape)
    width, is_decoded = next_power_of_two(shape.head_dim), _is_decoded(shape)
    if width > WIDE:
        rows = 128 if _has_warp_groups() and not is_decoded else 64
        return TileSizes(_rows(shape, rows), 32, 8, 2)
    is_masked = shape.head_dim != width or group_size(shape).bit_count() > 1
    is_tight = width == WIDE and (is_decoded or is_masked) and not _has_warp_groups()
    return TileSizes(_rows(shape, 128), 32 if is_tight else 64, 8, 3)


def _invariant_sizes(shape: AttentionShape) -> TileSizes:
    if next_power_of_two(shape.head_dim) > WIDE:
        return TileSizes(_rows(shape, 32), 32, 8, 2)
    rows, tokens = (32, 32) if _is_decoded(shape) else (64, 64)
    return TileSizes(_rows(shape, rows), tokens, 8, 3)


def _is_decoded(shape: AttentionShape) -> bool:
    """Return whether K and V are decoded in registers before a product."""
    return DTYPE_BYTES[shape.kv_dtype] == 1


def _has_warp_groups() -> bool:
    """Return whether products of 64 rows read operands from shared memory (9.0 and later)."""
    return int(driver.active.get_current_target().arch) >= 90


def _rows(shape: AttentionShape, least: int) -> int:
    return max(least, next_power_of_two(group_size(shape)))


def _tokens(shape: AttentionShape) -> int:
    """Return the tokens in K_TILE_BYTES, by the larger of the stored and the multiplied type."""
    itemsize = max(DTYPE_BYTES[shape.kv_dtype], shape.dtype.itemsize)
    tokens = K_TILE_BYTES // (next_power_of_two(shape.head_dim) * itemsize)
    if _is_decoded(shape) and next_power_of_two(shape.head_dim) > WIDE:
        tokens //= 2
    return max(MIN_TOKENS, min(MAX_TOKENS, tokens))
