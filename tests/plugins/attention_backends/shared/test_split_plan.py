"""Every visible tile is in exactly one item, and the lists never exceed their buffers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE

from quire.interfaces.attention import AttentionShape, StepLayout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.split_plan import MAX_ITEMS, SplitSizes, plan_splits

SHAPE = AttentionShape(
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_blocks_per_request=4096,
    dtype=torch.float32,
    kv_dtype="float32",
    device=torch.device("cpu"),
    batch_invariant=True,
)
SIZES = st.builds(
    SplitSizes,
    unit=st.sampled_from([16, 64, 256]),
    max_queries=st.integers(1, 4),
    budget=st.integers(1, 40),
    max_units=st.just(32),
    is_fixed=st.booleans(),
)
BOUNDS = st.builds(
    AttentionBounds, st.none() | st.integers(1, 400), st.none() | st.integers(1, 400)
)
REQUESTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 3000)), min_size=1, max_size=20
)  # tokens of the step, tokens before


def layout(requests, num_padding=0):
    starts = [0]
    for num_queries, _ in requests:
        starts.append(starts[-1] + num_queries)
    starts += starts[-1:] * num_padding
    lengths = [sum(request) for request in requests] + [0] * num_padding
    return StepLayout(
        query_start=torch.tensor(starts, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        block_table=torch.zeros(len(lengths), 1, dtype=torch.int32, device=DEVICE),
        slot_mapping=torch.zeros(starts[-1], dtype=torch.int64, device=DEVICE),
        num_tokens=starts[-1],
        max_query_len=max(num_queries for num_queries, _ in requests),
        query_lens_host=[],
        seq_lens_host=[],
    )


@settings(max_examples=25, deadline=None)
@given(requests=REQUESTS, bounds=BOUNDS, sizes=SIZES, num_padding=st.integers(0, 3))
def test_every_unit_that_is_seen_is_in_one_item(requests, bounds, sizes, num_padding):
    step = layout(requests, num_padding)
    plan = plan_splits(step, bounds, sizes)
    count = int(plan.count)
    assert count <= len(plan.items)
    seen, slots = {}, {}
    for request, first, end, slot in plan.items[:count].tolist():
        assert first < end
        units = range(first // sizes.unit, -(-end // sizes.unit))
        for index, unit in enumerate(units):
            assert (request, unit) not in seen
            seen[request, unit] = slot
            if slot >= 0 and (sizes.is_fixed or index == 0):
                partial = slot + index if sizes.is_fixed else slot
                assert partial not in slots
                slots[partial] = request
    assert seen.keys() == set(visible_units(requests, bounds, sizes))
    parts = plan.parts.tolist()
    owners = [request for request, (_, number) in enumerate(parts) for _ in range(number)]
    assert [slots[slot] for slot in range(len(slots))] == owners
    num_divided, *divided = plan.divided.tolist()
    assert divided[:num_divided] == sorted(set(owners))
    if not sizes.is_fixed or max(number for _, number in parts) <= sizes.max_units:
        assert len(slots) <= sizes.max_partials


def visible_units(requests, bounds, sizes):
    for index, (num_queries, computed) in enumerate(requests):
        if num_queries <= sizes.max_queries:
            first = bounds.first_key(computed)
            last = computed + num_queries - 1
            for unit in range(first // sizes.unit, last // sizes.unit + 1):
                yield index, unit


@pytest.mark.parametrize("lengths", [[16000], [1000] * 8, [15000] + [70] * 30])
def test_no_item_is_much_longer_than_an_equal_division_of_the_work(lengths):
    sizes = SplitSizes(unit=64, max_queries=4, budget=132, max_units=1024, is_fixed=False)
    plan = plan_splits(layout([(1, length - 1) for length in lengths]), AttentionBounds(), sizes)
    items = plan.items[: int(plan.count)]
    share = -(-sum(-(-length // 64) for length in lengths) // 132)
    longest = int((items[:, 2] - items[:, 1]).max())
    assert longest <= max(share, -(-max(lengths) // 64 // MAX_ITEMS) + 1) * 64
    assert len(items) > 60 or len(lengths) > 60


def test_more_requests_than_the_kernel_takes_at_a_time_are_numbered_through():
    sizes = SplitSizes(unit=64, max_queries=1, budget=32, max_units=64, is_fixed=False)
    plan = plan_splits(layout([(1, index % 7) for index in range(600)]), AttentionBounds(), sizes)
    assert int(plan.count) == 600
    assert plan.items[:600, 0].tolist() == list(range(600))


@pytest.mark.parametrize("is_fixed", [False, True])
def test_divided_requests_of_all_blocks_of_requests_are_numbered_through(is_fixed):
    """Long requests are in several groups of the 256 that the kernel processes at a time."""
    sizes = SplitSizes(unit=64, max_queries=1, budget=64, max_units=64, is_fixed=is_fixed)
    long = (3, 250, 300, 599)
    requests = [(1, 64 * 40 - 1) if index in long else (1, 3) for index in range(600)]
    plan = plan_splits(layout(requests), AttentionBounds(), sizes)
    num_divided, *divided = plan.divided.tolist()
    assert divided[:num_divided] == list(long)
    firsts, numbers = plan.parts[list(long)].T.tolist()
    assert firsts == [sum(numbers[:index]) for index in range(len(long))]
    assert min(numbers) > 1
    assert sum(numbers) <= sizes.max_partials
    items = plan.items[: int(plan.count)]
    slots = items[items[:, 3] >= 0, 3].tolist()
    assert len(set(slots)) == len(slots)


def test_fixed_splits_of_short_contexts_are_longer_than_a_tile():
    sizes = SplitSizes.of(replace(SHAPE, max_blocks_per_request=8), 32, programs_per_item=2)
    assert (sizes.unit, sizes.max_units) == (128, 1)


def test_fixed_splits_depend_on_the_longest_request_alone():
    sizes = SplitSizes.of(SHAPE, 32, programs_per_item=2)
    assert (sizes.unit * 32, sizes.max_units) == (4096 * 16, 32)


def test_requests_slightly_longer_than_an_item_leave_two_partial_outputs_each():
    sizes = SplitSizes(unit=64, max_queries=1, budget=32, max_units=64, is_fixed=False)
    plan = plan_splits(layout([(1, 64 * 15 - 1)] * 27), AttentionBounds(), sizes)
    assert plan.parts[:, 1].tolist() == [2] * 27
    assert sizes.max_partials >= 2 * 27


def test_only_requests_with_more_tokens_have_query_blocks_also_behind_the_first_256_requests():
    sizes = SplitSizes(1, max_queries=2, budget=4, max_units=64, is_fixed=False, block_queries=4)
    lengths = [1, 2, 3, 9, *([1] * 300), 8, 2, 5]
    step = layout([(length, 0) for length in lengths], num_padding=1)
    plan = plan_splits(step, AttentionBounds(), sizes)
    expected = [-(-length // 4) if length > 2 else 0 for length in lengths] + [0]
    assert plan.blocks.diff().tolist() == expected
    assert plan.blocks[0] == 0
    assert plan.max_blocks >= sum(expected)
    known = replace(step, query_lens_host=lengths)
    assert plan_splits(known, AttentionBounds(), sizes).max_blocks == sum(expected)


@pytest.mark.parametrize(("block_queries", "max_queries"), [(0, 2), (4, 9)])
def test_a_step_without_query_blocks_counts_none(block_queries, max_queries):
    sizes = SplitSizes(16, max_queries, 4, 64, is_fixed=False, block_queries=block_queries)
    assert plan_splits(layout([(9, 0)]), AttentionBounds(), sizes).max_blocks == 0
