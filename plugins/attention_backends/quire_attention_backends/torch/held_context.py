"""Reuse of the gathered K and V between consecutive decode steps of the same requests.

From one decode step to the next, the gathered context grows by one token per request. So it is held
per layer, and the next step appends a token instead of gathering everything again. On a CPU, where
a step is memory-bound, this saves half of an attention layer. The held context is a copy: the paged
cache stays complete, and any other step starts a new copy.

Equal block tables mean equal content, because only these two steps write to the cache between them.
A row that has the blocks of the same row in the last step, and one token more, reads what that row
read and wrote, even if it belongs to another request: a request that was assigned the blocks of
another one must first write its own tokens there. After any other write to the cache (by a KV
store, by copying blocks) `forget` must be called.

    step 1   gather  [2, n * K, C, D], C = the longest context and GROWTH_TOKENS
    step 2   append one row for each of 2 * n * K; read [:, :, :L]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from quire.interfaces.attention import AttentionShape, StepLayout
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch.spans import IntArray

if TYPE_CHECKING:
    from torch import Tensor

GROWTH_TOKENS = 64  # tokens that a copy can grow by
MAX_LAYER_BYTES = 2**23  # a larger copy costs more memory than it is worth
MAX_PADDING = 2  # maximum ratio of padded tokens to actual tokens


@dataclass(slots=True, eq=False)
class HeldBatch:
    """The requests of the held context, as of the latest step: n rows, capacity of C tokens each.

    Attributes:
        block_table: `[n, blocks]` of that step. The table of a request only grows, so an equal
            prefix and one token more mean the same content.
        seq_lens: `[n]`, number of tokens of each request.
        mask: `[n * K, 1, C]`, -inf from each request's length on.
        appended: `[2 * n * K]`, rows of the copy that receive this step's K and V.
        num_steps: Number of steps since the copy was started.
        context: `[2 * n * K * C]`, rows of the cache to gather in this step; None until a layer
            needs them.
    """

    block_table: Tensor
    seq_lens: IntArray
    mask: Tensor
    appended: Tensor
    num_steps: int = 0
    context: Tensor | None = None

    @property
    def length(self) -> int:
        """L, the length of the longest context."""
        return int(self.seq_lens.max())

    def is_continued_by(self, step: StepLayout) -> bool:
        """Whether a step computes one more token of the same requests."""
        if not np.array_equal(step.seq_lens_host, self.seq_lens + 1):
            return False
        if self.length == self.mask.shape[2]:
            return False  # the capacity is used up
        return torch.equal(step.block_table[:, : self.block_table.shape[1]], self.block_table)

    def advance(self, step: StepLayout) -> None:
        """Append one token to each request."""
        self.block_table, self.seq_lens = step.block_table.clone(), self.seq_lens + 1
        self.appended += 1
        half = len(self.appended) // 2  # the mask has rows for K only
        self.mask.view(-1).index_fill_(0, self.appended[:half], 0.0)
        self.num_steps += 1
        self.context = None


@dataclass(slots=True)
class _Copy:
    """The held context of one layer."""

    rows: Tensor  # [at least 2 * n * K * C, D]
    held: HeldBatch
    num_steps: int


@dataclass(slots=True)
class HeldContext:
    """The held contexts of all layers of one backend, for float32 on a CPU.

    Attributes:
        shape: Shape of the backend.
    """

    shape: AttentionShape
    _held_batch: HeldBatch | None = None
    _copies: dict[int, _Copy] = field(default_factory=dict)  # by the address of the layer's cache

    def begin(self, step: StepLayout) -> HeldBatch | None:
        """Start or continue a held batch; must be called for every step, in order.

        Returns:
            The held batch, or None if the step's context is not held.
        """
        last, self._held_batch = self._held_batch, None
        if self._is_worth_it(step):
            if last is not None and last.is_continued_by(step):
                last.advance(step)
                self._held_batch = last
            else:
                self._held_batch = self._start_batch(step)
        return self._held_batch

    def forget(self) -> None:
        """Drop the held context, because the cache was written outside a step."""
        self._held_batch = None

    def read(
        self, held: HeldBatch, cache: Tensor, rows: CacheRows, new: Tensor
    ) -> tuple[Tensor, Tensor]:  # [n * K, L, D] both
        """Return K and V of a layer.

        Args:
            held: Return value of `begin` for this step.
            cache: Cache of the layer as rows `[rows, D]`; this step's K and V are in it.
            rows: Row indices of tokens in it.
            new: This step's K and then V, `[2 * n * K, D]`.
        """
        copy = self._copies.get(cache.data_ptr())
        # A layer that uses the cache of another one reads it again in the same step.
        if copy is not None and copy.held is held and held.num_steps - copy.num_steps <= 1:
            copy.rows.index_copy_(0, held.appended, new)
        else:
            copy = self._gather(held, cache, rows, copy)
        copy.num_steps = held.num_steps
        pairs, _, capacity = held.mask.shape
        k, v = copy.rows[: 2 * pairs * capacity].view(2, pairs, capacity, -1)[:, :, : held.length]
        return k, v

    def _is_worth_it(self, step: StepLayout) -> bool:
        shape, lens = self.shape, step.seq_lens_host
        is_float32 = shape.dtype == torch.float32 and shape.kv_dtype == "float32"
        if shape.device.type != "cpu" or not is_float32 or shape.batch_invariant:
            return False
        if step.query_lens_host != [1] * len(lens) or len(step.slot_mapping) != len(lens):
            return False
        num_padded = len(lens) * max(lens)
        row_bytes = 2 * shape.num_kv_heads * shape.head_dim * 4
        fits = (num_padded + len(lens) * GROWTH_TOKENS) * row_bytes <= MAX_LAYER_BYTES
        return fits and num_padded <= MAX_PADDING * sum(lens)

    def _start_batch(self, step: StepLayout) -> HeldBatch:
        seq_lens, num_kv_heads = np.array(step.seq_lens_host), self.shape.num_kv_heads
        lens = torch.from_numpy(seq_lens)
        capacity = int(seq_lens.max()) + GROWTH_TOKENS
        is_padding = torch.arange(capacity) >= lens.unsqueeze(1)  # [n, C]
        mask = torch.zeros(len(lens), capacity, dtype=torch.float32)
        mask.masked_fill_(is_padding, -math.inf)
        mask = mask.repeat_interleave(num_kv_heads, 0).unsqueeze(1)
        last = (lens - 1).repeat_interleave(num_kv_heads).repeat(2)  # [2 * n * K]
        appended = torch.arange(len(last)) * capacity + last
        return HeldBatch(step.block_table.clone(), seq_lens, mask, appended)

    def _gather(self, held: HeldBatch, cache: Tensor, rows: CacheRows, copy: _Copy | None) -> _Copy:
        """Copy the whole context."""
        pairs, _, capacity = held.mask.shape
        if held.context is None:
            held.context = _context(held, capacity, rows)
        size = 2 * pairs * capacity
        if copy is None or len(copy.rows) < size:
            copy = _Copy(cache.new_empty(size, cache.shape[1]), held, 0)
            self._copies[cache.data_ptr()] = copy
        copy.held = held
        torch.index_select(cache, 0, held.context, out=copy.rows[:size])
        return copy


def _context(held: HeldBatch, capacity: int, rows: CacheRows) -> Tensor:
    """Return the rows to gather; a shorter context is padded with its last token, masked."""
    ends = torch.from_numpy(held.seq_lens).unsqueeze(1)
    first = rows.of_positions(held.block_table, torch.minimum(torch.arange(capacity), ends - 1))
    return (first[None, :, None, :] + rows.head_rows[:, None, :, None]).view(-1)
