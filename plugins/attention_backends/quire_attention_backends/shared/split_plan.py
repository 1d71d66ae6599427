"""Split plans, made on the device: items of KV for short requests, query blocks for longer ones.

The work of short requests is counted in units of KV: a unit is a tile or, in batch-invariant mode,
a split, which starts at a fixed multiple of tokens. One small kernel runs once per step and
attention bounds. It counts the units that the step's short requests attend to, divides them by the
number of programs that keep the device busy, and writes a list of items. An item is a run of units
of one request:

    tokens of request 0   |--------|--------|-----|       three items, partial outputs 0 to 2
    tokens of request 1   |---|                           one item, which writes the output
    tokens of request 2   |--------|----|                 two items, partial outputs 3 and 4

With `budget` programs for each KV head and u = ceil(units / budget) units per item, there are at
most R + budget items. So the grid depends on buffer sizes alone, and a program without an item
exits. A request of more than one item is divided. It has more than u units, so it has less than
twice its proportion of the budget: at most `2 * budget` items leave partial outputs, and fewer than
`budget` requests are divided. Repeated plans of one batch differ only in which program runs what.

A program that starts late makes the step longer by its whole length. So an item is a small part of
the total work of a multiprocessor: PROGRAMS_PER_SM is a few times the number of programs that run
there at once. The value is calculated, not measured.

The query blocks of all requests with more tokens are numbered in order; block b belongs to the last
request whose first block is at most b. The host knows their exact number if it knows the step,
otherwise the maximum for its T tokens: a request of n tokens has at most n // q + 1 blocks.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, N803

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import AttentionShape, StepLayout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.launch_sizes import num_programs

PROGRAMS_PER_SM = 8
MAX_ITEMS = 128  # per request, so that merging stays short
MAX_FIXED_SPLITS = 32  # per request, in batch-invariant mode
MIN_FIXED_SPLIT = 128  # tokens
ITEM_FIELDS = tl.constexpr(4)
BLOCK_R = 256
BLOCK_ITEMS = 8  # items of a request that are written together


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """Parameters of the split plan of a backend, derived from its shape alone.

    Attributes:
        unit: Number of tokens in a unit of work; a multiple of a tile.
        max_queries: Maximum number of scheduled tokens of a request that is split.
        budget: Number of programs per KV head that keep the device busy.
        max_units: Maximum number of units of a request.
        is_fixed: True if every unit is a split at a fixed position with its own partial output
            (batch-invariant mode).
        block_queries: Number of queries in a block of a longer request; 0: there are no blocks.
    """

    unit: int
    max_queries: int
    budget: int
    max_units: int
    is_fixed: bool
    block_queries: int = 0

    @classmethod
    def of(
        cls,
        shape: AttentionShape,
        tile: int,
        *,
        programs_per_item: int,
        max_queries: int = 1,
        block_queries: int = 0,
        programs_per_sm: int = PROGRAMS_PER_SM,
    ) -> SplitSizes:
        """Choose the parameters for a shape and a tile size.

        Args:
            shape: Shape of the backend.
            tile: Number of tokens in a tile of K and V.
            programs_per_item: Number of programs that compute an item, each for other heads.
            max_queries: Maximum number of scheduled tokens of a request that is split.
            block_queries: Number of queries in a block of a longer request; 0: there are no blocks.
            programs_per_sm: Number of programs for each multiprocessor of a GPU.
        """
        budget = max(1, num_programs(shape.device, programs_per_sm) // programs_per_item)
        max_tokens = shape.max_blocks_per_request * shape.block_size
        unit = max(MIN_FIXED_SPLIT, tile) if shape.batch_invariant else tile
        while shape.batch_invariant and unit * MAX_FIXED_SPLITS < max_tokens:
            unit *= 2
        max_units = -(-max_tokens // unit)
        return cls(unit, max_queries, budget, max_units, shape.batch_invariant, block_queries)

    @property
    def max_partials(self) -> int:
        """Maximum number of partial outputs of a step for each KV head."""
        if self.is_fixed:  # fewer than `max_units` units per item, or no request is divided
            return self.budget * max(1, self.max_units - 1)
        return 2 * self.budget


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Assignment of work items to programs, on the device.

    Attributes:
        count: `[1]` int32, number of items.
        items: `[R + budget, 4]` int32: request, first token, end, first partial output or -1.
        parts: `[R, 2]` int32: index of the first partial output and number of partial outputs; the
            number is 0 for a request that is not divided.
        divided: `[1 + min(R, budget)]` int32: number of divided requests, then their indices.
        blocks: `[R + 1]` int32: first query block of each request, then the number of blocks;
            undefined if `max_blocks` is 0.
        max_blocks: Number of query blocks; its maximum if only the device knows the step.
    """

    count: Tensor
    items: Tensor
    parts: Tensor
    divided: Tensor
    blocks: Tensor
    max_blocks: int


def plan_splits(step: StepLayout, bounds: AttentionBounds, sizes: SplitSizes) -> SplitPlan:
    """Plan a step for the layers with the given attention bounds."""
    num_requests, device = len(step.seq_lens), step.seq_lens.device
    count = torch.empty(1, dtype=torch.int32, device=device)
    num_items = num_requests + sizes.budget
    items = torch.empty((num_items, ITEM_FIELDS.value), dtype=torch.int32, device=device)
    parts = torch.empty((num_requests, 2), dtype=torch.int32, device=device)
    num_divided = min(num_requests, sizes.budget)
    divided = torch.empty(1 + num_divided, dtype=torch.int32, device=device)
    blocks = torch.empty(num_requests + 1, dtype=torch.int32, device=device)
    max_blocks = _max_blocks(step, sizes)
    _plan[1,](
        step.query_start,
        step.seq_lens,
        count,
        items,
        parts,
        divided,
        blocks,
        num_requests,
        0 if bounds.window is None else bounds.window,
        0 if bounds.chunk is None else bounds.chunk,
        UNIT=sizes.unit,
        BUDGET=sizes.budget,
        MAX_QUERIES=sizes.max_queries,
        MAX_ITEMS=MAX_ITEMS,
        IS_FIXED=sizes.is_fixed,
        BLOCK_QUERIES=sizes.block_queries if max_blocks else 0,
        BLOCK_R=BLOCK_R,
        BLOCK_ITEMS=BLOCK_ITEMS,
        num_warps=8,
        enable_fp_fusion=True,
    )
    return SplitPlan(count, items, parts, divided, blocks, max_blocks)


def _max_blocks(step: StepLayout, sizes: SplitSizes) -> int:
    """Return the number of query blocks, or its maximum if only the device knows the step."""
    queries, short = sizes.block_queries, sizes.max_queries
    if not queries or step.max_query_len <= short:
        return 0
    if step.query_lens_host:
        return sum(-(-length // queries) for length in step.query_lens_host if length > short)
    num_tokens = len(step.slot_mapping)
    return num_tokens // queries + min(len(step.seq_lens), num_tokens // (short + 1))


@triton.jit
def first_seen(position, window, chunk):
    """Return the first position that a query attends to; `window` and `chunk` 0 mean none."""
    first = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    size = tl.maximum(chunk, 1)
    return tl.where(chunk > 0, tl.maximum(first, position // size * size), first)


@triton.jit
def _units_of(
    query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
):  # fmt: skip
    """Return the first visible token, the end, and the numbers of units between and of queries."""
    is_there = row < num_requests
    length = tl.load(seq_lens_ptr + row, mask=is_there, other=0)
    start = tl.load(query_start_ptr + row, mask=is_there, other=0)
    num_queries = tl.load(query_start_ptr + row + 1, mask=is_there, other=0) - start
    is_short = (num_queries > 0) & (num_queries <= MAX_QUERIES)
    end = tl.where(is_short, length, 0)
    first = first_seen(tl.maximum(end - num_queries, 0), window, chunk)
    units = tl.where(end > 0, (end + UNIT - 1) // UNIT - first // UNIT, 0)
    return first, end, units, num_queries


@triton.jit(do_not_specialize=["num_requests", "window", "chunk"])
def _plan(
    query_start_ptr,
    seq_lens_ptr,
    count_ptr,
    items_ptr,
    parts_ptr,
    divided_ptr,
    blocks_ptr,
    num_requests,
    window,
    chunk,
    UNIT: tl.constexpr,
    BUDGET: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    MAX_ITEMS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
):
    """Count the units, divide them and write the lists; one program, BLOCK_R requests at a time."""
    total = tl.zeros((), tl.int32)
    num_blocks = tl.zeros((), tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        _, _, units, num_queries = _units_of(
            query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT, MAX_QUERIES
        )
        total += tl.sum(units)
        if BLOCK_QUERIES > 0:
            blocks = (num_queries + BLOCK_QUERIES - 1) // BLOCK_QUERIES
            blocks = tl.where(num_queries > MAX_QUERIES, blocks, 0)
            first_block = num_blocks + tl.cumsum(blocks) - blocks
            tl.store(blocks_ptr + row, first_block, mask=row < num_requests)
            num_blocks += tl.sum(blocks)
    if BLOCK_QUERIES > 0:
        tl.store(blocks_ptr + num_requests, num_blocks)
    item_units = tl.maximum((total + BUDGET - 1) // BUDGET, 1)  # maximum units per item
    num_items = tl.zeros((), tl.int32)
    num_partials = tl.zeros((), tl.int32)
    num_divided = tl.zeros((), tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        first, end, units, _ = _units_of(
            query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT, MAX_QUERIES
        )
        wanted = tl.minimum((units + item_units - 1) // item_units, MAX_ITEMS)
        length = (units + tl.maximum(wanted, 1) - 1) // tl.maximum(wanted, 1)  # evenly divided
        length = tl.maximum(length, 1)
        items = (units + length - 1) // length
        partials = tl.where(items > 1, units if IS_FIXED else items, 0)
        item = num_items + tl.cumsum(items) - items
        partial = num_partials + tl.cumsum(partials) - partials
        is_divided = (items > 1).to(tl.int32)
        divided_index = num_divided + tl.cumsum(is_divided) - is_divided
        num_items += tl.sum(items)
        num_partials += tl.sum(partials)
        num_divided += tl.sum(is_divided)
        is_there = row < num_requests
        tl.store(parts_ptr + row * 2, partial, mask=is_there)
        tl.store(parts_ptr + row * 2 + 1, partials, mask=is_there)
        tl.store(divided_ptr + 1 + divided_index, row, mask=items > 1)
        base = first // UNIT * UNIT
        for begin in range(0, tl.max(items), BLOCK_ITEMS):
            index = begin + tl.arange(0, BLOCK_ITEMS)[None, :]
            is_item = index < items[:, None]
            into = items_ptr + (item[:, None] + index) * 4
            before = index * length[:, None]  # units in the request's items before this one
            from_token = base[:, None] + before * UNIT
            to_token = tl.minimum(from_token + length[:, None] * UNIT, end[:, None])
            slot = partial[:, None] + (before if IS_FIXED else index)
            tl.store(into, row[:, None], mask=is_item)
            tl.store(into + 1, from_token, mask=is_item)
            tl.store(into + 2, to_token, mask=is_item)
            tl.store(into + 3, tl.where(items[:, None] > 1, slot, -1), mask=is_item)
    tl.store(count_ptr, num_items)
    tl.store(divided_ptr, num_divided)
