"""Numbers of blocks, and lengths of the requests they hold; worked out by hand."""

import pytest
from engine_parts import WholeContext, make_plan
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.kv_cache.kv_plan import (
    StageMemory,
    blocks_held,
    fixed_plan,
    fixed_stages,
    longest_request,
    plan_stages,
    requests_that_fit,
)
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

# A page of one head of 8 numbers, 4 tokens, K and V, in float32: 2 * 4 * 1 * 8 * 4 = 256 bytes.


def specs(num_layers=3, num_kv_heads=1):
    return [
        WholeContext(KVLayer(f"layers.{i}", "whole", num_kv_heads, 8), 4, "float32")
        for i in range(num_layers)
    ]


def full(name, heads=1):
    return FullAttentionSpec(KVLayer(name, "full_attention", heads, 8), 4, "float32")


def window(name, size=8):
    layer = KVLayer(name, "sliding_window", 1, 8, (("window", size),))
    return SlidingWindowSpec(layer, 4, "float32")


def plan_kv_cache(layers, available_bytes, *limits, **more):
    (plan,) = plan_stages([StageMemory(layers, available_bytes)], *limits, **more)
    return plan


MIXED = (full("f0"), window("w0"), full("f1"), window("w1"), window("w2"))


def test_blocks_are_what_the_memory_holds_over_all_layers():
    # A page of 4 tokens has 64 * 4 = 256 bytes; three layers take 768 bytes a block.
    plan = plan_kv_cache(specs(), 10_000, max_useful_tokens=1000, max_num_seqs=100)
    assert plan.num_blocks == 10_000 // 768 == 13
    assert [tensor.num_bytes for tensor in plan.tensors] == [13 * 256] * 3
    assert plan.groups[0].layer_names == ("layers.0", "layers.1", "layers.2")
    assert not plan.padded_layers


def test_one_spec_of_several_sizes_has_one_table_and_a_tensor_a_layer():
    sizes = [full("a"), full("b", heads=3), full("c", heads=2)]
    plan = plan_kv_cache(sizes, 20_000, max_useful_tokens=1000, max_num_seqs=100)
    # A block takes 256 + 768 + 512 = 1,536 bytes over the layers: 20,000 // 1,536 = 13.
    assert plan.num_blocks == 13
    (group,) = plan.groups
    assert group.layer_names == ("a", "b", "c")
    assert [tensor.num_bytes for tensor in plan.tensors] == [13 * 256, 13 * 768, 13 * 512]
    assert [plan.page_bytes(tensor) for tensor in plan.tensors] == [256, 768, 512]
    assert not plan.padded_layers


def test_three_groups_share_the_tensors_of_the_largest():
    plan = plan_kv_cache(MIXED, 10_000, max_useful_tokens=1000, max_num_seqs=100)
    # Groups (f0, f1), (w0, w2), (w1, nothing): group_size 2, one page of 256 bytes for all.
    # 10,000 // 256 = 39 pages, // 2 = 19 blocks.
    assert plan.num_blocks == 19
    assert [group.layer_names for group in plan.groups] == [("f0", "f1"), ("w0", "w2"), ("w1",)]
    assert [tensor.layer_names for tensor in plan.tensors] == [("f0", "w0", "w1"), ("f1", "w2")]
    # Both tensors have half of the memory: 19 * 256 = 4,864 bytes.
    assert [tensor.num_bytes for tensor in plan.tensors] == [4864, 4864]
    assert plan.num_bytes == 9728
    assert plan.block_size == 4


def test_pages_of_mixed_specs_are_padded_to_the_largest():
    plan = plan_kv_cache([full("f", heads=3), window("w")], 10_000, 1000, 100)
    # Pages of 768 and 256 bytes, both 768 long: 10,000 // 768 = 13 blocks in one tensor.
    assert plan.num_blocks == 13
    assert [tensor.num_bytes for tensor in plan.tensors] == [13 * 768]
    assert plan.padded_layers


def test_a_model_that_keeps_nothing_has_the_null_block():
    plan = plan_kv_cache([], 0, max_useful_tokens=1000, max_num_seqs=100)
    assert (plan.num_blocks, plan.groups, plan.tensors) == (1, (), ())
    assert (plan.num_bytes, plan.block_size) == (0, 0)
    assert fixed_plan([], 500).num_blocks == 1
    assert longest_request(plan, 1000) == 1000


def test_stages_with_other_layers_agree_on_the_smallest_number_of_blocks():
    # Over both stages: 2 full layers and 3 windows, in groups of 2 as above.
    first = StageMemory([full("f0"), window("w0"), window("w1")], 10_000)
    second = StageMemory([full("f1"), window("w2")], 5_000)
    one, two = plan_stages([first, second], max_useful_tokens=1000, max_num_seqs=100)
    assert [group.layer_names for group in one.groups] == [("f0",), ("w0",), ("w1",)]
    assert [group.layer_names for group in two.groups] == [("f1",), ("w2",), ()]
    # Each stage has one layer of a group at most, so one tensor of 256 bytes a block:
    # 10,000 // 256 = 39 and 5,000 // 256 = 19.
    assert [tensor.layer_names for tensor in one.tensors] == [("f0", "w0", "w1")]
    assert [tensor.layer_names for tensor in two.tensors] == [("f1", "w2")]
    assert one.num_blocks == two.num_blocks == 19
    assert one.num_bytes == two.num_bytes == 19 * 256


def test_stages_of_one_spec_have_a_tensor_a_layer():
    first = StageMemory([full("a"), full("b", heads=2)], 10_000)
    second = StageMemory([full("c", heads=3)], 10_000)
    one, two = plan_stages([first, second], max_useful_tokens=1000, max_num_seqs=100)
    # 10,000 // (256 + 512) = 13 and 10,000 // 768 = 13 blocks.
    assert [t.num_bytes for t in one.tensors] == [13 * 256, 13 * 512]
    assert [t.num_bytes for t in two.tensors] == [13 * 768]


def test_a_stage_that_keeps_nothing_follows_the_others():
    plans = plan_stages([StageMemory([], 0), StageMemory(specs(1), 2_560)], 1000, 100)
    assert [plan.num_blocks for plan in plans] == [10, 10]
    assert plans[0].tensors == ()
    assert plans[0].groups[0].layer_names == ()


def test_no_more_blocks_than_the_requests_can_use():
    plan = plan_kv_cache(specs(), 10**9, max_useful_tokens=10, max_num_seqs=5)
    assert plan.num_blocks == 5 * 3 + 1, "three blocks a request, and the null block"


def test_a_fixed_number_of_blocks_is_that_of_every_stage():
    stages = [MIXED[:3], MIXED[3:], []]
    first, second, empty = fixed_stages(stages, 50)
    whole = fixed_plan(MIXED, 50)
    assert [plan.num_blocks for plan in (first, second, empty)] == [50] * 3
    # Groups f0 f1, w0 w2 and w1: the layers of a group on a stage have a tensor each.
    assert [len(plan.tensors) for plan in (first, second, empty)] == [2, 1, 0]
    leaders = [group.spec.layer.name for group in whole.groups]
    for plan in (first, second, empty):
        assert [group.spec.layer.name for group in plan.groups] == leaders
    names = [name for plan in (first, second) for g in plan.groups for name in g.layer_names]
    assert sorted(names) == sorted(spec.layer.name for spec in MIXED)


def test_a_window_makes_few_blocks_useful():
    plan = plan_kv_cache(MIXED, 10**9, 1000, max_num_seqs=5, max_step_tokens=16)
    # A request of 1,000 tokens holds 1,000 / 4 = 250 blocks of full attention. Of the windows it
    # holds what lies under 7 + 16 = 23 tokens: 1 + ceil(22 / 4) = 7 blocks, in two groups.
    assert plan.num_blocks == 5 * (250 + 7 + 7) + 1


def test_too_little_memory_says_how_much_is_needed():
    with pytest.raises(CapacityError, match=r"at least 1,536 bytes and gets 1,000"):
        plan_kv_cache(specs(), 1000, max_useful_tokens=10, max_num_seqs=5)


def test_one_token_needs_a_block_in_each_group():
    # The null block and three more, of 2 * 256 bytes each.
    with pytest.raises(CapacityError, match=r"at least 2,048 bytes and gets 2,047"):
        plan_kv_cache(MIXED, 2047, max_useful_tokens=10, max_num_seqs=5)
    assert plan_kv_cache(MIXED, 2048, max_useful_tokens=10, max_num_seqs=5).num_blocks == 4


def test_the_poorest_stage_is_the_one_that_is_named():
    stages = [StageMemory(specs(1), 10_000), StageMemory([full("x")], 300)]
    with pytest.raises(CapacityError, match="gets 300"):
        plan_stages(stages, max_useful_tokens=10, max_num_seqs=5)


def test_a_fixed_number_of_blocks_is_taken_as_it_is():
    plan = fixed_plan(MIXED, 50)
    assert plan.num_blocks == 50
    assert [tensor.num_bytes for tensor in plan.tensors] == [50 * 256] * 2


@given(st.integers(2, 60), st.integers(1, 400))
def test_the_longest_request_fits_and_one_token_more_does_not(num_blocks, at_most):
    plan = make_plan(num_blocks)
    longest = longest_request(plan, at_most)
    (group,) = plan.groups
    assert longest <= at_most
    assert group.spec.blocks_needed(longest - 1) <= num_blocks - 1
    if longest < at_most:
        assert group.spec.blocks_needed(longest) > num_blocks - 1


def test_a_window_needs_room_for_itself_and_one_step():
    plan = fixed_plan([window("w", size=8)], 8)
    # 7 usable blocks. Under 7 + 16 = 23 tokens lie 7 blocks at most, so length does not matter.
    assert longest_request(plan, 10_000, max_step_tokens=16) == 10_000
    # One step of 20 tokens: 27 tokens, 1 + ceil(26 / 4) = 8 blocks. So 7 * 4 = 28 computed tokens
    # are the most, and the 29th, which is never computed, is the last.
    assert longest_request(plan, 10_000, max_step_tokens=20) == 29


def test_mixed_groups_share_the_pool_of_ids():
    plan = fixed_plan(MIXED, 1 + 20)
    # Windows of 8 and steps of 4: 7 + 4 = 11 tokens lie in 1 + ceil(10 / 4) = 4 blocks at most, in
    # two groups; 20 - 8 = 12 blocks are left for full attention: 48 computed tokens.
    assert blocks_held(plan, 48, max_step_tokens=4) == 12 + 4 + 4 == 20
    assert longest_request(plan, 10_000, max_step_tokens=4) == 49


LAYER = st.tuples(st.sampled_from(["full", "narrow", "wide"]), st.sampled_from([1, 2, 3]))


@given(
    st.lists(st.lists(LAYER, max_size=6), min_size=1, max_size=4).filter(any),
    st.lists(st.integers(50_000, 10**6), min_size=4, max_size=4),
)
def test_every_stage_fits_and_one_block_more_would_not(stages, available):
    count = iter(range(100))

    def spec(kind, heads):
        if kind == "full":
            return full(f"layers.{next(count)}", heads)
        return window(f"layers.{next(count)}", 8 if kind == "narrow" else 16)

    memory = [
        StageMemory([spec(*layer) for layer in stage], num_bytes)
        for stage, num_bytes in zip(stages, available, strict=False)
    ]
    plans = plan_stages(memory, max_useful_tokens=10**6, max_num_seqs=100)
    assert len({(plan.num_blocks, plan.block_size, len(plan.groups)) for plan in plans}) == 1
    left_bytes = []
    for plan, stage in zip(plans, memory, strict=True):
        assert plan.num_bytes <= stage.available_bytes
        bound = [name for tensor in plan.tensors for name in tensor.layer_names]
        assert sorted(bound) == sorted(spec.layer.name for spec in stage.specs)
        if plan.tensors:
            a_block = plan.num_bytes // plan.num_blocks
            left_bytes.append(stage.available_bytes - plan.num_bytes - a_block)
    assert min(left_bytes) < 0, "the poorest stage has no room for a block more"


@pytest.mark.parametrize(
    ("num_blocks", "num_tokens", "num_requests"),
    [
        (1 + 6, 1, 6),  # one token, which is computed, takes a block
        (1 + 6, 2, 6),  # of two the second never is
        (1 + 6, 5, 6),  # four are computed: one block
        (1 + 6, 6, 3),
        (1 + 6, 24, 1),
        (1 + 6, 25, 1),
        (1 + 6, 26, 0),
        (1 + 7, 21, 1),  # five blocks, and two are left
    ],
)
def test_so_many_requests_fit_as_the_blocks_hold(num_blocks, num_tokens, num_requests):
    assert requests_that_fit(make_plan(num_blocks), num_tokens, 4) == num_requests


def test_one_of_those_that_fit_is_in_its_largest_step():
    plan = fixed_plan([window("w", size=8)], 1 + 13)
    # A step of 16: 7 + 16 = 23 tokens in 7 blocks. A decode: 8 tokens in 1 + ceil(7 / 4) = 3.
    assert requests_that_fit(plan, 1000, max_step_tokens=16) == 1 + (13 - 7) // 3 == 3
    assert requests_that_fit(fixed_plan([window("w")], 1 + 7), 1000, 16) == 1
    assert requests_that_fit(fixed_plan([window("w")], 1 + 6), 1000, 16) == 0


def test_any_number_of_requests_fits_where_nothing_is_kept():
    assert requests_that_fit(fixed_plan([], 1), 1000, 16) is None


def test_a_pool_of_the_null_block_holds_a_token_that_is_never_computed():
    assert longest_request(make_plan(1), 100) == 1
    assert longest_request(make_plan(2), 100) == 5
    assert longest_request(make_plan(2), 3) == 3
