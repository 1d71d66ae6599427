"""The KV-cache plan follows the user's options, and its errors name those that would help."""

from dataclasses import replace

import pytest
from grid_parts import composed_engine
from installed import sites

from quire.compose.sizes.layer_specs import layer_specs
from quire.config import Settings
from quire.errors import CapacityError, RefusedError
from quire.launch.composing import Composed, compose_engine
from quire.launch.kv_memory import (
    NUM_KEPT_REQUESTS,
    log_memory,
    log_reduction,
    plan_memory,
    planned_requests,
)
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)

# 3 layers with 2 heads of 16 numbers: a block of 16 tokens has 3 * 2 * 16 * 2 * 16 * 4 bytes.
BLOCK_BYTES = 12_288
BACKEND = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    @hookimpl
    def register_attention_backends(registry):
        some = frozenset({"float32"})
        there = AttentionCapabilities(
            devices=frozenset({"cpu"}), dtypes=some, kv_dtypes=some, OPTIONS
        )
        registry.add("acme", "quire.errors:QuireError", capabilities=there)
"""
MODEL = """
    from dataclasses import replace
    from quire import hookimpl
    from quire.interfaces.kv_cache import KVLayer
    from quire.interfaces.model import ModelCapabilities
    from quire_models.family_table import describe as describe_family

    @hookimpl
    def register_models(registry):
        there = ModelCapabilities(describe="acme_model:describe")
        registry.add("AcmeForCausalLM", "quire.errors:QuireError", capabilities=there)

    def describe(config):
        known = describe_family(config | {"architectures": ["LlamaForCausalLM"]})
        window = KVLayer("w", "sliding_window", 1, 16, (("window", 32),))
        return replace(known, kv_layers=(KVLayer("f", "full_attention", 2, 16), window, LAYERS))
"""


def composed(folder, architecture="LlamaForCausalLM", **options) -> Composed:
    written = write_checkpoint(folder / "m", architecture, layout="llama")
    settings = Settings.from_options({"model": str(written.folder)} | options)
    return compose_engine(settings, load_plugins(settings.plugins))


def planned(its: Composed, available=10**9):
    (plan,) = plan_memory(its.settings, its.composition, its.plugins.registries, [available])
    return plan


def test_the_memory_that_is_left_makes_the_blocks(tmp_path):
    plan = planned(composed(tmp_path), available=100 * BLOCK_BYTES + 1)
    assert plan.num_blocks == 100
    assert plan.max_model_len == 512


def test_a_given_size_goes_before_what_is_left(tmp_path):
    its = composed(tmp_path, kv_cache_memory_bytes=50 * BLOCK_BYTES)
    assert planned(its).num_blocks == 50


def test_a_given_number_of_blocks_goes_before_what_is_left(tmp_path):
    assert planned(composed(tmp_path, num_kv_blocks=40), available=0).num_blocks == 40


def test_no_more_is_planned_than_the_requests_can_use(tmp_path):
    its = composed(tmp_path, max_num_seqs=3, max_model_len=100, enable_prefix_caching=False)
    assert planned(its).num_blocks == 3 * 7 + 1


def test_a_host_has_room_for_the_prefixes_of_a_few_more_requests(tmp_path):
    its = composed(tmp_path, max_num_seqs=3, max_model_len=100)
    assert planned(its).num_blocks == (3 + NUM_KEPT_REQUESTS) * 7 + 1
    few = planned(its, available=9 * BLOCK_BYTES)
    assert few.num_blocks == 9, "as far as the memory goes"


def test_a_device_keeps_prefixes_in_all_that_is_left_of_its_memory(tmp_path):
    its = composed(tmp_path, max_num_seqs=2)
    assert planned_requests(its.settings, its.composition) == 2 + NUM_KEPT_REQUESTS
    assert planned_requests(its.settings, replace(its.composition, device="cuda:0")) is None


def test_no_more_requests_are_planned_than_a_step_has_tokens(tmp_path):
    options = {"max_num_seqs": 30, "max_num_batched_tokens": 4, "enable_prefix_caching": False}
    its = composed(tmp_path, max_model_len=100, **options)
    assert planned(its).num_blocks == 4 * 7 + 1


def test_a_given_size_is_used_whole_where_prefixes_are_kept_in_it(tmp_path):
    size = {"kv_cache_memory_bytes": 50 * BLOCK_BYTES, "max_num_seqs": 3, "max_model_len": 100}
    assert planned(composed(tmp_path / "a", **size)).num_blocks == 50
    without = composed(tmp_path / "b", enable_prefix_caching=False, **size)
    assert planned(without).num_blocks == 3 * 7 + 1


def test_requests_become_shorter_where_the_cache_is_small_with_a_warning(tmp_path, caplog):
    its = composed(tmp_path, num_kv_blocks=5)
    plan = planned(its)
    assert plan.max_model_len == 4 * 16 + 1
    assert not caplog.records, "every rank plans, and only the engine warns"
    log_reduction(its.composition, [plan])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    start = "max_model_len is reduced to 65 from the model's 512 to fit the KV cache of 4 blocks"
    assert record.getMessage().startswith(start)


@pytest.mark.parametrize("size", [{"num_kv_blocks": 5}, {"kv_cache_memory_bytes": 70_000}, {}])
def test_a_length_that_was_asked_for_is_never_lowered(tmp_path, caplog, size):
    its = composed(tmp_path, max_model_len=66, **size)
    with pytest.raises(CapacityError, match="at most 65"):
        planned(its, available=5 * BLOCK_BYTES)
    fits = composed(tmp_path / "fits", max_model_len=65, **size)
    assert planned(fits, available=5 * BLOCK_BYTES).max_model_len == 65
    whole = composed(tmp_path / "whole", max_model_len=512, num_kv_blocks=33)
    assert planned(whole).max_model_len == 512, "the model's own length, and 32 blocks hold it"
    assert not caplog.records


def test_a_length_that_was_asked_for_and_does_not_fit_names_what_would(tmp_path):
    its = composed(tmp_path, num_kv_blocks=5, max_model_len=100)
    # 99 computed tokens are 7 blocks, and the null block.
    with pytest.raises(CapacityError) as caught:
        planned(its)
    assert str(caught.value) == (
        "one request of 100 tokens (max_model_len) needs 7 blocks of 16 tokens, and the KV cache "
        "has 4 blocks (61,440 bytes); set max_model_len to at most 65, or give the cache 98,304 "
        "bytes (kv_cache_memory_bytes) or 8 blocks (num_kv_blocks)"
    )
    assert planned(composed(tmp_path, num_kv_blocks=8, max_model_len=100)).max_model_len == 100


def test_a_cache_that_holds_no_request_at_all_is_to_become_larger(site, tmp_path):
    site.install("acme_model", MODEL.replace("LAYERS", ""))
    with pytest.raises(CapacityError, match=r"has 1 blocks \([\d,]+ bytes\); give the cache"):
        planned(composed(tmp_path, "AcmeForCausalLM", num_kv_blocks=2))


def test_smaller_steps_are_named_where_they_would_help(site, tmp_path):
    site.install("acme_model", MODEL.replace("LAYERS", ""))
    options = {"num_kv_blocks": 45, "max_model_len": 512}
    # 511 tokens are 32 blocks; with steps of 16 the window holds 1 + ceil(46 / 16) = 4 more.
    with pytest.raises(CapacityError, match=r"or compute in smaller steps"):
        planned(composed(tmp_path, "AcmeForCausalLM", **options))
    small = composed(tmp_path, "AcmeForCausalLM", max_num_batched_tokens=16, **options)
    assert planned(small).max_model_len == 512


def test_without_prefix_caching_no_snapshot_is_planned(site, tmp_path):
    state = 'KVLayer("s", "recurrent_state", 1, 1, (("state_shapes", ((8, 4),)),))'
    site.install("acme_model", MODEL.replace("LAYERS", state))
    site.install("acme", BACKEND.replace("OPTIONS", SERVES_ALL))

    def state_blocks(enable):
        options = {"enable_prefix_caching": enable, "attention_backend": "acme"}
        its = composed(tmp_path, "AcmeForCausalLM", **options)
        spec = layer_specs(its.settings, its.composition, its.plugins.registries)[-1]
        return spec.blocks_needed(500)

    assert state_blocks(True) == 32
    assert state_blocks(False) == 1


LAYER_BYTES = BLOCK_BYTES // 3


def stages_of(registries, folder, *counts, **options) -> Composed:
    """Compose a model of three layers for stages of so many of them."""
    write_checkpoint(folder, "LlamaForCausalLM")
    stages = {"pipeline_parallel_size": len(counts), "pipeline_layers": list(counts)}
    return composed_engine(registries, folder, **stages, **options)


def plans_of(its: Composed, *kv_bytes, device="cuda"):
    """Plan for ranks that have so many bytes left, each on a GPU of its own."""
    composition = replace(its.composition, device=device)
    return plan_memory(its.settings, composition, its.plugins.registries, kv_bytes)


def test_all_stages_have_as_many_blocks_as_the_smallest(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 2, 1)
    first, last = plans_of(its, 60 * LAYER_BYTES, 29 * LAYER_BYTES)
    assert (first.num_blocks, last.num_blocks) == (29, 29)
    assert (first.num_bytes, last.num_bytes) == (2 * 29 * LAYER_BYTES, 29 * LAYER_BYTES)
    assert first.groups[0].layer_names == tuple(
        f"model.layers.{layer}.self_attn.attention" for layer in (0, 1)
    )
    assert last.groups[0].layer_names == ("model.layers.2.self_attn.attention",)
    first, last = plans_of(its, 40 * LAYER_BYTES, 10**9)
    assert (first.num_blocks, last.num_blocks) == (20, 20)


def test_a_given_size_is_that_of_each_device(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 2, 1, kv_cache_memory_bytes=50 * LAYER_BYTES)
    assert [plan.num_blocks for plan in plans_of(its, 0, 0)] == [25, 25]


def test_a_given_number_of_blocks_is_that_of_each_stage(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 1, 1, 1, num_kv_blocks=40)
    plans = plans_of(its, 0, 0, 0)
    assert [(plan.num_blocks, len(plan.tensors)) for plan in plans] == [(40, 1)] * 3


def test_ranks_of_a_layer_hold_their_heads_alone(quire_registries, tmp_path):
    write_checkpoint(tmp_path, "LlamaForCausalLM")
    for tp_size, part in ((1, 1), (2, 2), (4, 2)):  # two heads, of which four ranks have one each
        its = composed_engine(quire_registries, tmp_path, tensor_parallel_size=tp_size)
        (plan,) = plans_of(its, *[100 * BLOCK_BYTES // part] * tp_size)
        assert (plan.num_blocks, plan.bytes_a_block) == (100, BLOCK_BYTES // part)


def test_the_length_fits_every_stage(quire_registries, tmp_path, caplog):
    its = stages_of(quire_registries, tmp_path, 2, 1)
    plans = plans_of(its, 10**9, 5 * LAYER_BYTES)
    assert [plan.max_model_len for plan in plans] == [4 * 16 + 1] * 2
    log_reduction(its.composition, plans)
    assert len(caplog.records) == 1, "one warning for all stages"
    wanted = stages_of(quire_registries, tmp_path, 2, 1, max_model_len=100)
    # 7 blocks and the null block, on a device with two layers.
    with pytest.raises(CapacityError, match=rf"give the cache {8 * 2 * LAYER_BYTES:,} bytes"):
        plans_of(wanted, 10**9, 5 * LAYER_BYTES)


def test_a_stage_without_room_for_a_token_is_named(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 2, 1)
    with pytest.raises(CapacityError, match=r"of pipeline stage 1 needs at least 8,192 bytes"):
        plans_of(its, 10**9, LAYER_BYTES)


def test_the_size_on_the_ranks_of_each_stage_is_logged(quire_registries, tmp_path, caplog):
    its = stages_of(quire_registries, tmp_path, 2, 1, num_kv_blocks=201)
    plans = plans_of(its, 0, 0)
    caplog.set_level("INFO")
    log_memory(plans)
    log_memory(plans[1:])
    assert caplog.messages == [
        "KV cache: 200 blocks of 16 tokens in 1 group(s), 1.6 and 0.8 MB on each rank of the "
        "pipeline stages",
        "KV cache: 200 blocks of 16 tokens in 1 group(s), 0.8 MB",
    ]


def test_a_plan_names_the_first_rank_of_its_stage(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 1, 1, 1, tensor_parallel_size=2)
    assert [plan.rank for plan in plans_of(its, *[10**8] * 6)] == [0, 2, 4]


def test_a_stage_has_what_its_smallest_rank_has(quire_registries, tmp_path):
    """A rank has half of a layer's heads."""
    its = stages_of(quire_registries, tmp_path, 2, 1, tensor_parallel_size=2)
    half = LAYER_BYTES // 2
    for kv_bytes in ([80, 60, 90, 90], [60, 80, 90, 90], [99, 99, 40, 30], [99, 99, 30, 40]):
        plans = plans_of(its, *[number * half for number in kv_bytes])
        assert {plan.num_blocks for plan in plans} == {30}


def test_ranks_of_a_host_have_what_the_last_one_to_load_saw(quire_registries, tmp_path):
    its = stages_of(quire_registries, tmp_path, 2, 1)
    for kv_bytes in ([90, 40], [40, 90]):
        plans = plans_of(its, *[number * LAYER_BYTES for number in kv_bytes], device="cpu")
        assert {plan.num_blocks for plan in plans} == {20}


SERVES_ALL = (
    "sliding_window=True, padded_pages=True, layouts=frozenset({'kv', 'state'}), priority=9"
)
LARGE_STATE = 'KVLayer("s", "recurrent_state", 1, 1, (("state_shapes", ((64, 32),)),))'


def test_a_backend_that_cannot_use_padded_pages_is_refused(site, tmp_path):
    site.install("acme_model", MODEL.replace("LAYERS", ""))
    site.install("acme", BACKEND.replace("OPTIONS", "sliding_window=True"))
    its = composed(tmp_path, "AcmeForCausalLM", attention_backend="acme")
    with pytest.raises(RefusedError, match="'acme' does not support padded pages"):
        planned(its)


def test_a_backend_that_cannot_use_the_common_blocks_is_refused(site, tmp_path):
    site.install("acme_model", MODEL.replace("LAYERS", LARGE_STATE))
    sizes = "block_sizes=frozenset({16}), "
    site.install("acme", BACKEND.replace("OPTIONS", sizes + SERVES_ALL))
    its = composed(tmp_path, "AcmeForCausalLM", attention_backend="acme")
    # The state has 64 * 32 * 4 = 8,192 bytes, a page of 16 tokens 2 * 16 * 2 * 16 * 4 = 4,096.
    with pytest.raises(RefusedError, match=r"blocks of 32 tokens, and .* 'acme' supports 16"):
        planned(its)
