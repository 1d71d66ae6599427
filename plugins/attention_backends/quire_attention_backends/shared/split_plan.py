"""How a step's single tokens are cut into programs: by the total work, and on the device.

Work is counted in units of KV: a tile, or in batch-invariant mode a split, which lies at a fixed
multiple of tokens. One small kernel, once a step for each reach, counts the units that the step's
short requests see, divides them by the programs that keep the device busy, and writes a list of
items, each with a run of units of one request:

    tokens of request 0   |--------|--------|-----|       three items, partial answers 0 to 2
    tokens of request 1   |---|                           one item, that answers
    tokens of request 2   |--------|----|                 two items, partial answers 3 and 4

With `budget` programs for each KV head, and u = ceil(units / budget) units an item, there are at
most R + budget items; so the grid depends on the size of buffers alone, and who finds no item
leaves. A request of more than one item is divided. It has more than u units, so it has less than
twice its share of the budget: at most `2 * budget` items leave partial answers, and fewer than
`budget` requests are divided. Lists of one batch differ in nothing but which program runs what.

A program that starts late makes the step longer by its whole length. So an item is a small part of
what a multiprocessor does in all: PROGRAMS_PER_SM is a few times what runs there at once. Chosen by
arithmetic, not measured.
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

PROGRAMS_PER_SM = 8
CPU_PROGRAMS = 16  # for the interpreter: enough to split, few enough to wait for
MAX_ITEMS = 128  # of a request, so that merging stays short
MAX_FIXED_SPLITS = 32  # of a request, in batch-invariant mode
MIN_FIXED_SPLIT = 128  # tokens
ITEM_FIELDS = tl.constexpr(4)
BLOCK_R = 256
BLOCK_ITEMS = 8  # of each request, written together


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """How a backend splits, from its shape alone.

    Attributes:
        unit: Tokens of a unit of work; a multiple of a tile.
        max_queries: Requests with up to so many tokens in a step are split.
        budget: Programs for each KV head that keep the device busy.
        max_units: A request may have so many units in one item.
        is_fixed: A unit is a split of its own, with a partial answer of its own.
    """

    unit: int
    max_queries: int
    budget: int
    max_units: int
    is_fixed: bool

    @classmethod
    def of(cls, shape: AttentionShape, tile: int, max_queries: int) -> SplitSizes:
        """Choose for a shape and the tokens of a tile."""
        budget = max(1, num_programs(shape.device) // shape.num_kv_heads)
        max_tokens = shape.max_blocks_per_request * shape.block_size
        if not shape.batch_invariant:
            return cls(tile, max_queries, budget, _ceil_div(max_tokens, tile), False)
        unit = max(MIN_FIXED_SPLIT, tile)
        while unit * MAX_FIXED_SPLITS < max_tokens:
            unit *= 2
        return cls(unit, max_queries, budget, _ceil_div(max_tokens, unit), True)

    @property
    def max_partials(self) -> int:
        """How many partial answers a step can have for each KV head."""
        if self.is_fixed:  # fewer than `max_units` units an item, else no request is divided
            return self.budget * max(1, self.max_units - 1)
        return 2 * self.budget


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Which program reads what, on the device.

    Attributes:
        count: `[1]` int32, items.
        items: `[R + budget, 4]` int32: request, first token, end, first partial answer or -1.
        parts: `[R, 2]` int32: first partial answer and their number; 0 where there are none.
        divided: `[1 + min(R, budget)]` int32: how many requests leave partial answers, and which.
    """

    count: Tensor
    items: Tensor
    parts: Tensor
    divided: Tensor


def plan_splits(step: StepLayout, bounds: AttentionBounds, sizes: SplitSizes) -> SplitPlan:
    """Cut the short requests of a step, for layers that see so far."""
    num_requests, device = len(step.seq_lens), step.seq_lens.device
    count = torch.empty(1, dtype=torch.int32, device=device)
    num_items = num_requests + sizes.budget
    items = torch.empty((num_items, ITEM_FIELDS.value), dtype=torch.int32, device=device)
    parts = torch.empty((num_requests, 2), dtype=torch.int32, device=device)
    num_divided = min(num_requests, sizes.budget)
    divided = torch.empty(1 + num_divided, dtype=torch.int32, device=device)
    _plan[1,](
        step.query_start,
        step.seq_lens,
        count,
        items,
        parts,
        divided,
        num_requests,
        0 if bounds.window is None else bounds.window,
        0 if bounds.chunk is None else bounds.chunk,
        UNIT=sizes.unit,
        BUDGET=sizes.budget,
        MAX_QUERIES=sizes.max_queries,
        MAX_ITEMS=MAX_ITEMS,
        IS_FIXED=sizes.is_fixed,
        BLOCK_R=BLOCK_R,
        BLOCK_ITEMS=BLOCK_ITEMS,
        num_warps=8,
        enable_fp_fusion=True,
    )
    return SplitPlan(count, items, parts, divided)


def num_programs(device: torch.device) -> int:
    """Return how many programs keep a device busy."""
    if device.type != "cuda":
        return CPU_PROGRAMS
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def _ceil_div(number: int, size: int) -> int:
    return -(-number // size)


@triton.jit
def first_seen(position, window, chunk):
    """Return the first position that a query at a position sees; 0: no window, no chunk."""
    first = tl.where(window > 0, tl.maximum(position + 1 - window, 0), 0)
    size = tl.maximum(chunk, 1)
    return tl.where(chunk > 0, tl.maximum(first, position // size * size), first)


@triton.jit
def _units_of(
    query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
):  # fmt: skip
    """Return of some requests their first token, end, and units from the first to the end."""
    is_there = row < num_requests
    length = tl.load(seq_lens_ptr + row, mask=is_there, other=0)
    start = tl.load(query_start_ptr + row, mask=is_there, other=0)
    num_queries = tl.load(query_start_ptr + row + 1, mask=is_there, other=0) - start
    is_short = (num_queries > 0) & (num_queries <= MAX_QUERIES)
    end = tl.where(is_short, length, 0)
    first = first_seen(tl.maximum(end - num_queries, 0), window, chunk)
    units = tl.where(end > 0, (end + UNIT - 1) // UNIT - first // UNIT, 0)
    return first, end, units


@triton.jit(do_not_specialize=["num_requests", "window", "chunk"])
def _plan(
    query_start_ptr,
    seq_lens_ptr,
    count_ptr,
    items_ptr,
    parts_ptr,
    divided_ptr,
    num_requests,
    window,
    chunk,
    UNIT: tl.constexpr,
    BUDGET: tl.constexpr,
    MAX_QUERIES: tl.constexpr,
    MAX_ITEMS: tl.constexpr,
    IS_FIXED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
):
    """Count, divide, and write the list; one program, by its few hundred requests at a time."""
    total = tl.zeros((), tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        _, _, units = _units_of(
            query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT, MAX_QUERIES
        )
        total += tl.sum(units)
    share = tl.maximum((total + BUDGET - 1) // BUDGET, 1)  # units of an item, at most
    num_items = tl.zeros((), tl.int32)
    num_partials = tl.zeros((), tl.int32)
    num_divided = tl.zeros((), tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        first, end, units = _units_of(
            query_start_ptr, seq_lens_ptr, row, num_requests, window, chunk, UNIT, MAX_QUERIES
        )
        wanted = tl.minimum((units + share - 1) // share, MAX_ITEMS)
        length = (units + tl.maximum(wanted, 1) - 1) // tl.maximum(wanted, 1)  # even shares
        length = tl.maximum(length, 1)
        items = (units + length - 1) // length
        partials = tl.where(items > 1, units if IS_FIXED else items, 0)
        item = num_items + tl.cumsum(items) - items
        partial = num_partials + tl.cumsum(partials) - partials
        is_divided = (items > 1).to(tl.int32)
        place = num_divided + tl.cumsum(is_divided) - is_divided
        num_items += tl.sum(items)
        num_partials += tl.sum(partials)
        num_divided += tl.sum(is_divided)
        is_there = row < num_requests
        tl.store(parts_ptr + row * 2, partial, mask=is_there)
        tl.store(parts_ptr + row * 2 + 1, partials, mask=is_there)
        tl.store(divided_ptr + 1 + place, row, mask=items > 1)
        base = first // UNIT * UNIT
        for begin in range(0, tl.max(items), BLOCK_ITEMS):
            index = begin + tl.arange(0, BLOCK_ITEMS)[None, :]
            is_item = index < items[:, None]
            into = items_ptr + (item[:, None] + index) * 4
            before = index * length[:, None]  # units of the request's items before this one
            from_token = base[:, None] + before * UNIT
            to_token = tl.minimum(from_token + length[:, None] * UNIT, end[:, None])
            slot = partial[:, None] + (before if IS_FIXED else index)
            tl.store(into, row[:, None], mask=is_item)
            tl.store(into + 1, from_token, mask=is_item)
            tl.store(into + 2, to_token, mask=is_item)
            tl.store(into + 3, tl.where(items[:, None] > 1, slot, -1), mask=is_item)
    tl.store(count_ptr, num_items)
    tl.store(divided_ptr, num_divided)
