"""Memory profile of a GPU: bytes left for the cache, and options that would leave more."""

from dataclasses import replace

import pytest

from quire.compose.sizes.memory_profile import MemoryProfile, groups_of, least_cache_bytes, misfit
from quire.config import Settings
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

GB = 10**9
PROFILE = MemoryProfile(
    total_bytes=80 * GB,
    other_bytes=1 * GB,
    weight_bytes=16 * GB,
    forward_bytes=3 * GB,
    sampling_bytes=2 * GB,
    workspace_bytes=GB // 2,
    table_bytes=GB // 4,
    graph_bytes=GB // 4,
)


def settings(**options):
    return Settings.from_options(options)


def full(index, head_dim=16):
    return FullAttentionSpec(KVLayer(f"full.{index}", "full_attention", 2, head_dim), 16, "float32")


def window(index):
    layer = KVLayer(f"window.{index}", "sliding_window", 2, 16, (("window", 32),))
    return SlidingWindowSpec(layer, 16, "float32")


def test_the_cache_has_a_share_of_the_device_without_all_else():
    assert PROFILE.kv_bytes(0.9) == 72 * GB - 21 * GB
    assert PROFILE.kv_bytes(1.0) == 59 * GB
    assert PROFILE.kv_bytes(0.2) == -5 * GB


def test_a_forward_pass_and_its_sampling_use_the_same_memory_after_each_other():
    assert PROFILE.step_bytes == 3 * GB
    assert replace(PROFILE, sampling_bytes=7 * GB).kv_bytes(0.9) == 47 * GB


@pytest.mark.parametrize("needed", [1, GB, 17 * GB + 1, 59 * GB])
def test_the_share_that_is_named_is_the_smallest_that_does(needed):
    share = PROFILE.utilization_for(needed)
    assert PROFILE.kv_bytes(share) >= needed
    assert PROFILE.kv_bytes(round(share - 0.01, 2)) < needed


def test_no_share_is_named_where_none_does():
    assert PROFILE.utilization_for(59 * GB + 1) is None


def test_what_fits_is_no_misfit():
    assert misfit(PROFILE, settings(), 51 * GB) is None
    assert misfit(PROFILE, settings(), 51 * GB + 1) is not None


def test_a_larger_share_is_named_before_anything_else():
    reason = misfit(PROFILE, settings(), 55 * GB)
    assert "needs 55,000,000,000 bytes, and 51,000,000,000 are left" in reason
    assert "80.00 GB, of which 0.9 may be used" in reason
    assert "weights 16.00, largest step 3.00" in reason
    assert reason.endswith("set gpu_memory_utilization to at least 0.95")
    assert "estimate" not in reason
    assert "by an estimate" in misfit(replace(PROFILE, is_estimated=True), settings(), 55 * GB)


def test_smaller_steps_are_named_where_no_share_is_enough():
    large = replace(PROFILE, forward_bytes=40 * GB, sampling_bytes=30 * GB)
    given = settings(max_num_batched_tokens=8192, max_num_seqs=256)
    reason = misfit(large, given, 30 * GB)
    # 24 GB are left for a step: 8192 * 24 / 40 = 4,915 tokens, and 256 * 24 / 30 = 204 requests.
    assert "set max_num_batched_tokens to 4096 and max_num_seqs to 128, or use a smaller" in reason
    reason = misfit(replace(large, sampling_bytes=GB), given, 30 * GB)
    assert "set max_num_batched_tokens to 4096, or use a smaller dtype" in reason


def test_where_the_weights_leave_nothing_smaller_ones_are_named():
    reason = misfit(replace(PROFILE, weight_bytes=90 * GB), settings(), GB)
    assert "and 0 are left" in reason
    assert "; use a smaller dtype or kv_cache_dtype, a shorter max_model_len" in reason
    assert "tensor_parallel_size" in reason
    assert "max_num_batched_tokens" not in reason


def test_a_cache_of_a_given_size_may_have_all_that_there_is():
    given = settings(kv_cache_memory_bytes=59 * GB)
    assert misfit(PROFILE, given, 59 * GB) is None
    reason = misfit(PROFILE, given, 60 * GB)
    assert "set kv_cache_memory_bytes to at most 59,000,000,000" in reason
    hopeless = misfit(replace(PROFILE, weight_bytes=90 * GB), given, 60 * GB)
    assert "use a smaller dtype" in hopeless


def test_a_cache_must_hold_the_request_that_was_asked_for():
    page = 2 * 16 * 2 * 16 * 4
    specs = [full(0), full(1)]
    assert least_cache_bytes(specs, settings()) == 2 * 2 * page, "a block of it and a null block"
    # 99 computed tokens are 7 blocks.
    assert least_cache_bytes(specs, settings(max_model_len=100)) == 2 * 8 * page
    assert least_cache_bytes([], settings()) == 0


def test_layers_of_one_kind_are_one_group_and_of_several_as_many_as_the_smallest_fills():
    assert [count for _, count in groups_of([full(0), full(1), full(2, head_dim=8)])] == [1]
    mixed = [full(0), full(1), *map(window, range(5))]
    assert [(spec.layer.spec, count) for spec, count in groups_of(mixed)] == [
        ("full_attention", 1),
        ("sliding_window", 3),
    ]
    assert groups_of([]) == []


def test_the_last_token_of_a_request_is_never_stored():
    page = full(0).page_bytes
    assert least_cache_bytes([full(0)], settings(max_model_len=17)) == (1 + 1) * page
    assert least_cache_bytes([full(0)], settings(max_model_len=18)) == (2 + 1) * page


def test_a_model_has_at_most_so_many_groups():
    specs = [full(0), *(window(index) for index in range(1, 40))]
    assert [count for _, count in groups_of(specs)] == [1, 8]


def test_of_two_limits_of_a_step_the_one_is_named_whose_memory_is_too_much():
    forward = replace(PROFILE, forward_bytes=60 * GB, sampling_bytes=GB)
    reason = misfit(forward, settings(max_num_batched_tokens=8192, max_num_seqs=64), 30 * GB)
    assert "set max_num_batched_tokens to" in reason
    assert "max_num_seqs" not in reason
    sampling = replace(PROFILE, forward_bytes=GB, sampling_bytes=60 * GB)
    reason = misfit(sampling, settings(max_num_batched_tokens=8192, max_num_seqs=64), 30 * GB)
    assert "set max_num_seqs to" in reason
    assert "max_num_batched_tokens" not in reason
