import pytest
from engine_parts import WholeContext, make_plan
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.kv_plan import fixed_plan, longest_request, plan_kv_cache
from quire.errors import CapacityError, UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer


def specs(num_layers=3, num_kv_heads=1):
    return [
        WholeContext(KVLayer(f"layers.{i}", "whole", num_kv_heads, 8), 4, "float32")
        for i in range(num_layers)
    ]


def test_blocks_are_what_the_memory_holds_over_all_layers():
    # A page of 4 tokens has 64 * 4 = 256 bytes; three layers take 768 bytes a block.
    plan = plan_kv_cache(specs(), 10_000, max_useful_tokens=1000, max_num_seqs=100)
    assert plan.num_blocks == 10_000 // 768 == 13
    assert [tensor.num_bytes for tensor in plan.tensors] == [13 * 256] * 3
    assert plan.groups[0].layer_names == ("layers.0", "layers.1", "layers.2")


def test_no_more_blocks_than_the_requests_can_use():
    plan = plan_kv_cache(specs(), 10**9, max_useful_tokens=10, max_num_seqs=5)
    assert plan.num_blocks == 5 * 3 + 1, "three blocks a request, and the null block"


def test_too_little_memory_says_how_much_is_needed():
    with pytest.raises(CapacityError, match=r"at least 1,536 bytes and gets 1,000"):
        plan_kv_cache(specs(), 1000, max_useful_tokens=10, max_num_seqs=5)


@pytest.mark.parametrize("is_fixed", [True, False])
def test_layers_of_different_specs_are_refused_either_way(is_fixed):
    class Other(WholeContext):
        """Equal arithmetic, and another spec all the same."""

    mixed = [*specs(1), Other(KVLayer("layers.1", "other", 1, 8), 4, "float32")]
    plan = (
        (lambda: fixed_plan(mixed, 10))
        if is_fixed
        else (lambda: plan_kv_cache(mixed, 10**6, 10, 5))
    )
    with pytest.raises(UnsupportedModelError, match="other, whole"):
        plan()


@given(st.integers(2, 60), st.integers(1, 400))
def test_the_longest_request_fits_and_one_token_more_does_not(num_blocks, at_most):
    plan = make_plan(num_blocks)
    longest = longest_request(plan, at_most)
    (group,) = plan.groups
    assert longest <= at_most
    assert group.spec.blocks_needed(longest - 1) <= num_blocks - 1
    if longest < at_most:
        assert group.spec.blocks_needed(longest) > num_blocks - 1
