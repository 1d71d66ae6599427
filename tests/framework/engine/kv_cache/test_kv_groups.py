"""Layers that share a block table and memory; every sum is worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.kv_cache.kv_groups import (
    MAX_GROUPS,
    choose_group_size,
    group_layers,
    with_common_blocks,
)
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.recurrent_state import RecurrentStateSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

# A page of one head of 8 numbers, 4 tokens, K and V, in float32: 2 * 4 * 1 * 8 * 4 = 256 bytes.
PAGE = 256


def full(name, heads=1, head_dim=8):
    return FullAttentionSpec(KVLayer(name, "full_attention", heads, head_dim), 4, "float32")


def window(name, size=8, heads=1, head_dim=8):
    layer = KVLayer(name, "sliding_window", heads, head_dim, (("window", size),))
    return SlidingWindowSpec(layer, 4, "float32")


def state(name, *shape):
    layer = KVLayer(name, "recurrent_state", 1, 1, (("state_shapes", (shape,)),))
    return RecurrentStateSpec(layer, 4, "float32")


def padding(specs):
    """Bytes of a block of each group that no layer can use."""
    plan = fixed_plan(specs, 10)
    return [plan.padding_bytes(group) for group in plan.groups]


def names(grouping):
    return [tuple(spec.layer.name for spec in group) for group in grouping.groups]


def test_layers_of_one_spec_are_one_group_with_memory_of_their_own():
    specs = [full("a"), full("b")]
    grouping = group_layers(specs)
    assert names(grouping) == [("a", "b")]
    assert grouping.tensors == [(PAGE, ("a",)), (PAGE, ("b",))]
    assert padding(specs) == [0]


def test_layers_of_one_spec_and_several_sizes_are_one_group_too():
    specs = [full("a"), full("b", heads=3), full("c", head_dim=16)]
    grouping = group_layers(specs)
    assert names(grouping) == [("a", "b", "c")]
    # Three heads: 3 * 256 bytes; heads twice as large: 2 * 256.
    assert grouping.tensors == [(256, ("a",)), (768, ("b",)), (512, ("c",))]
    assert grouping.bytes_a_block == 256 + 768 + 512
    assert padding(specs) == [0]


def test_two_windows_are_two_groups():
    grouping = group_layers([window("a", 8), window("b", 16), window("c", 8)])
    assert names(grouping) == [("a",), ("c",), ("b",)]
    assert grouping.tensors == [(PAGE, ("a", "c", "b"))]


def test_three_groups_with_padding_share_two_tensors():
    specs = [full("f0"), window("w0"), full("f1"), window("w1"), window("w2")]
    grouping = group_layers(specs)
    # Two full layers make one group of 2. Three windows make ceil(3 / 2) = 2 groups, dealt out:
    # w0 and w2, then w1 and nothing.
    assert names(grouping) == [("f0", "f1"), ("w0", "w2"), ("w1",)]
    assert grouping.tensors == [(PAGE, ("f0", "w0", "w1")), (PAGE, ("f1", "w2"))]
    # A block id stands for a page in each of the 2 tensors.
    assert grouping.bytes_a_block == 2 * 256
    # 3 groups * 2 places = 6 pages for 5 layers: one of the last group's lies idle.
    assert padding(specs) == [0, 0, PAGE]


def test_pages_of_several_sizes_are_padded_to_the_largest():
    specs = [full("f", heads=1), window("w", heads=3)]
    grouping = group_layers(specs)
    assert grouping.page_bytes == 3 * 256
    assert grouping.tensors == [(768, ("f", "w"))]
    # f uses 256 of its 768 bytes, w all.
    assert padding(specs) == [512, 0]


def test_a_padded_page_is_whole_rows_for_every_layer():
    grouping = group_layers([full("f", heads=1, head_dim=12), window("w", heads=2, head_dim=8)])
    # Pages: 2 * 4 * 12 * 4 = 384 and 2 * 4 * 2 * 8 * 4 = 512 bytes. A row of f has 12 * 4 = 48
    # bytes, one of w 8 * 4 = 32; both divide 96. 512 / 96 = 5.33, so a page has 6 * 96 = 576.
    assert grouping.page_bytes == 576


def test_blocks_grow_until_a_page_of_tokens_is_as_long_as_a_state():
    specs = [full("f"), state("s", 4, 33)]
    # The state has 4 * 33 * 4 = 528 bytes. Pages of tokens: 4 -> 256, 8 -> 512, 16 -> 1,024.
    assert [spec.block_size for spec in with_common_blocks(specs)] == [16, 16]
    grouping = group_layers(specs)
    assert grouping.page_bytes == 1024
    assert grouping.tensors == [(1024, ("f", "s"))]
    assert padding(specs) == [0, 1024 - 528]


def test_blocks_stay_as_they_are_where_states_are_small():
    specs = [full("f"), state("s", 4, 16)]  # 256 bytes: just as long as a page of 4 tokens
    assert [spec.block_size for spec in with_common_blocks(specs)] == [4, 4]
    assert padding(specs) == [0, 0]


def test_states_alone_keep_their_blocks():
    specs = [state("a", 4, 33), state("b", 100, 100)]
    assert [spec.block_size for spec in with_common_blocks(specs)] == [4, 4]


@pytest.mark.parametrize(
    ("counts", "group_size", "num_idle"),
    [
        ((2, 3), 2, 1),  # 1 + 2 groups of 2: 6 places; groups of 3 have 6 places too: take 2
        ((4, 22), 4, 2),  # 1 + 6 groups: 28 places for 26 layers
        ((5, 29), 5, 1),  # 1 + 6 groups: 35 places for 34
        ((10, 52), 13, 3),  # groups of 10: 7 * 10 - 62 = 8 idle; of 13: 5 * 13 - 62 = 3
        ((5, 6), 6, 1),  # groups of 5: 3 * 5 - 11 = 4 idle; of 6: 2 * 6 - 11 = 1
        ((12, 36), 12, 0),
        ((7, 7), 7, 0),
        ((1, 100), 17, 18),  # 1 + 6 groups: 119 places; groups of 1 would be 101 groups
    ],
)
def test_the_group_size_leaves_few_pages_idle(counts, group_size, num_idle):
    assert choose_group_size(counts) == group_size
    places = sum(-(-count // group_size) * group_size for count in counts)
    assert places - sum(counts) == num_idle


@given(st.lists(st.integers(1, 80), min_size=2, max_size=6))
def test_no_group_size_is_better_within_the_limits(counts):
    def num_groups(size):
        return sum(-(-count // size) for count in counts)

    chosen = choose_group_size(counts)
    assert min(counts) <= chosen <= max(counts)
    assert num_groups(chosen) <= MAX_GROUPS
    for size in range(min(counts), max(counts) + 1):
        if num_groups(size) <= MAX_GROUPS:
            assert num_groups(size) * size >= num_groups(chosen) * chosen


@given(st.lists(st.sampled_from("fws"), min_size=1, max_size=40))
def test_every_layer_has_one_place_and_no_tensor_two_layers_of_a_group(kinds):
    make = {"f": full, "w": window, "s": lambda name: state(name, 2, 5)}
    specs = [make[kind](f"{kind}{index}") for index, kind in enumerate(kinds)]
    grouping = group_layers(specs)
    grouped = [name for group in names(grouping) for name in group]
    placed = [name for _, layers in grouping.tensors for name in layers]
    assert sorted(grouped) == sorted(placed) == sorted(spec.layer.name for spec in specs)
    if len(set(kinds)) > 1:
        for _, layers in grouping.tensors:
            assert all(len(set(layers) & set(group)) <= 1 for group in names(grouping))


def test_a_stage_keeps_its_share_of_each_group():
    layers = [full("f0"), window("w0"), window("w1"), full("f1"), window("w2"), window("w3")]
    whole = group_layers(layers)
    # 2 full and 4 windows: groups of 2, none padded; windows are dealt out 0 2, 1 3.
    assert names(whole) == [("f0", "f1"), ("w0", "w2"), ("w1", "w3")]
    first = whole.on_stage(frozenset({"f0", "w0", "w1"}))
    assert names(first) == [("f0",), ("w0",), ("w1",)]
    assert first.tensors == [(PAGE, ("f0", "w0", "w1"))]


def test_a_stage_may_have_nothing_of_a_group():
    whole = group_layers([full("f0"), window("w0"), window("w1")])
    last = whole.on_stage(frozenset({"w1"}))
    assert names(last) == [(), (), ("w1",)]
    assert last.tensors == [(PAGE, ("w1",))]
    assert [leader.layer.name for leader in last.leaders] == ["f0", "w0", "w1"]


def test_layers_of_several_block_sizes_meet_at_the_largest():
    specs = [full("a"), window("b").with_block_size(16), state("s", 4, 16)]
    assert [spec.block_size for spec in with_common_blocks(specs)] == [16] * 3
    alone = [state("s", 4, 16), state("t", 4, 33).with_block_size(8)]
    assert [spec.block_size for spec in with_common_blocks(alone)] == [8, 8]
