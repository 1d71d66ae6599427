"""Between two decode steps of the same requests, the gathered context grows by one token a request.

So it is held, layer by layer, and the next step appends a token instead of gathering everything
again: on a CPU, where a step is bound by memory, that is half of an attention layer. What is held
is a copy; the paged cache stays complete, and any other step simply starts a new copy.

Why equal tables mean equal content: between two steps in a row nobody writes to the cache but those
two steps. So a row whose blocks are those of the row before it, and that has one token more, reads
what that row read and wrote, whoever's request it is; a request that took over the blocks would
first have to write its own tokens there. Whoever writes from outside (a KV store, a copied block)
says so by `forget`.

    step 1   gather  [2, n * K, C, D], C = the longest context and room to grow
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

ROOM = 64  # tokens that a copy can grow by
MAX_LAYER_BYTES = 2**23  # a larger copy costs more memory than it is worth
MAX_PADDING = 2  # times the tokens that are really there


@dataclass(slots=True, eq=False)
class Tenancy:
    """The requests whose context is held, as of the latest step; n rows, C tokens of room.

    Attributes:
        block_table: `[n, blocks]` of that step; a table only ever grows while it belongs to one
            request, so equal beginnings and one token more mean the same request.
        seq_lens: `[n]`, tokens of each request.
        mask: `[n * K, 1, C]`, minus infinity from each request's length on.
        appended: `[2 * n * K]`, rows of the copy where this step's K and V go.
        num_steps: Steps since the copy was started.
        context: `[2 * n * K * C]`, rows of the cache to gather; of this step, once asked for.
    """

    block_table: Tensor
    seq_lens: IntArray
    mask: Tensor
    appended: Tensor
    num_steps: int = 0
    context: Tensor | None = None

    @property
    def length(self) -> int:
        """L, the longest context."""
        return int(self.seq_lens.max())

    def is_continued_by(self, step: StepLayout) -> bool:
        """Whether a step computes one more token of the same requests."""
        if not np.array_equal(step.seq_lens_host, self.seq_lens + 1):
            return False
        if self.length == self.mask.shape[2]:
            return False  # there is no room left
        return torch.equal(step.block_table[:, : self.block_table.shape[1]], self.block_table)

    def advance(self, step: StepLayout) -> None:
        """Take in one more token of each request."""
        self.block_table, self.seq_lens = step.block_table.clone(), self.seq_lens + 1
        self.appended += 1
        half = len(self.appended) // 2  # the mask has a row for each of K's, not of V's
        self.mask.view(-1).index_fill_(0, self.appended[:half], 0.0)
        self.num_steps += 1
        self.context = None


@dataclass(slots=True)
class _Copy:
    """The held context of one layer."""

    rows: Tensor  # [at least 2 * n * K * C, D]
    tenancy: Tenancy
    num_steps: int


@dataclass(slots=True)
class HeldContext:
    """The held contexts of all layers of one backend, for float32 on a CPU.

    Attributes:
        shape: What the backend was built for.
    """

    shape: AttentionShape
    _tenancy: Tenancy | None = None
    _copies: dict[int, _Copy] = field(default_factory=dict)  # by the address of the layer's cache

    def begin(self, step: StepLayout) -> Tenancy | None:
        """Say whether the step's context is held; to be called for every step, in order."""
        last, self._tenancy = self._tenancy, None
        if self._is_worth_it(step):
            if last is not None and last.is_continued_by(step):
                last.advance(step)
                self._tenancy = last
            else:
                self._tenancy = self._move_in(step)
        return self._tenancy

    def forget(self) -> None:
        """Let the next step gather again: the cache was written from outside."""
        self._tenancy = None

    def read(
        self, tenancy: Tenancy, cache: Tensor, rows: CacheRows, new: Tensor
    ) -> tuple[Tensor, Tensor]:  # [n * K, L, D] both
        """Return K and V of a layer.

        Args:
            tenancy: As `begin` gave it for this step.
            cache: The layer's cache as rows `[rows, D]`; this step's K and V are in it.
            rows: Where tokens lie in it.
            new: This step's K and then V, `[2 * n * K, D]`.
        """
        copy = self._copies.get(cache.data_ptr())
        if copy is not None and copy.tenancy is tenancy and copy.num_steps == tenancy.num_steps - 1:
            copy.rows.index_copy_(0, tenancy.appended, new)
        else:
            copy = self._gather(tenancy, cache, rows, copy)
        copy.num_steps = tenancy.num_steps
        pairs, _, room = tenancy.mask.shape
        k, v = copy.rows[: 2 * pairs * room].view(2, pairs, room, -1)[:, :, : tenancy.length]
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
        fits = (num_padded + len(lens) * ROOM) * row_bytes <= MAX_LAYER_BYTES
        return fits and num_padded <= MAX_PADDING * sum(lens)

    def _move_in(self, step: StepLayout) -> Tenancy:
        seq_lens, num_kv_heads = np.array(step.seq_lens_host), self.shape.num_kv_heads
        lens = torch.from_numpy(seq_lens)
        room = int(seq_lens.max()) + ROOM
        is_beyond = torch.arange(room) >= lens.unsqueeze(1)  # [n, C]
        mask = torch.zeros(len(lens), room, dtype=torch.float32)
        mask.masked_fill_(is_beyond, -math.inf)
        mask = mask.repeat_interleave(num_kv_heads, 0).unsqueeze(1)
        last = (lens - 1).repeat_interleave(num_kv_heads).repeat(2)  # [2 * n * K]
        appended = torch.arange(len(last)) * room + last
        return Tenancy(step.block_table.clone(), seq_lens, mask, appended)

    def _gather(
        self, tenancy: Tenancy, cache: Tensor, rows: CacheRows, copy: _Copy | None
    ) -> _Copy:
        """Copy the whole context."""
        pairs, _, room = tenancy.mask.shape
        if tenancy.context is None:
            tenancy.context = _context(tenancy, room, rows)
        size = 2 * pairs * room
        if copy is None or len(copy.rows) < size:
            copy = _Copy(cache.new_empty(size, cache.shape[1]), tenancy, 0)
            self._copies[cache.data_ptr()] = copy
        copy.tenancy = tenancy
        torch.index_select(cache, 0, tenancy.context, out=copy.rows[:size])
        return copy


def _context(tenancy: Tenancy, room: int, rows: CacheRows) -> Tensor:
    """Return what to gather; beyond its end a context repeats its last token, masked."""
    ends = torch.from_numpy(tenancy.seq_lens).unsqueeze(1)
    first = rows.tokens(tenancy.block_table, torch.minimum(torch.arange(room), ends - 1))  # [n, C]
    return (first[None, :, None, :] + rows.head_rows[:, None, :, None]).view(-1)
