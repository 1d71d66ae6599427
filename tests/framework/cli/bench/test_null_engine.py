import pytest

from quire.cli.bench.null_engine import (
    BLOCK_SIZE,
    SAMPLED_TOKEN,
    EngineParts,
    Workload,
    fill_pool,
    make_core,
    make_message,
    start_decoding,
)
from quire.errors import CapacityError

PARTS = EngineParts.load()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_scheduling(request):
    return request.param


def test_a_workload_begins_with_all_requests_in_their_first_decode(async_scheduling):
    workload = Workload(5, 64, async_scheduling=async_scheduling)
    core, _ = make_core(PARTS, workload)
    start_decoding(core, workload)
    assert core.scheduler.is_quiescent is not async_scheduling, (
        "with async scheduling a step is in flight"
    )
    running = core.scheduler.running
    assert [len(request.token_ids) for request in running] == [64] * 5
    assert {request.token_ids[-1] for request in running} == {SAMPLED_TOKEN}
    assert {request.num_preemptions for request in running} == {0}


def test_every_measured_step_decodes_one_token_for_each_request(async_scheduling):
    workload = Workload(5, 64, num_steps=3 * BLOCK_SIZE, async_scheduling=async_scheduling)
    core, _ = make_core(PARTS, workload)
    start_decoding(core, workload)
    for _ in range(2 * BLOCK_SIZE):
        outputs = core.step()
        assert outputs.stats.num_scheduled_tokens == 5
        assert [output.token_ids for output in outputs.outputs] == [[SAMPLED_TOKEN]] * 5
        assert {output.finish_reason for output in outputs.outputs} == {None}
    assert core.scheduler.num_preemptions == 0


def test_prompts_share_no_block():
    workload = Workload(300, 32)
    core, _ = make_core(PARTS, workload)
    start_decoding(core, workload)
    assert core.stats().num_prefix_queries > 0
    assert core.stats().num_prefix_hits == 0


def test_a_full_pool_evicts_a_cached_block_for_each_one_that_is_allocated():
    workload = Workload(4, 64, num_blocks=200, num_steps=3 * BLOCK_SIZE, is_pool_full=True)
    core, _ = make_core(PARTS, workload)
    fill_pool(core)
    pool = core.scheduler.kv.pool
    assert (pool.num_blank, pool.num_cached, pool.num_used) == (0, 199, 0)
    start_decoding(core, workload)
    before = pool.num_evictions
    for _ in range(BLOCK_SIZE):
        core.step()
    assert pool.num_evictions == before + 4
    assert pool.num_blank == 0


def test_a_pool_that_is_too_small_is_refused_with_the_numbers():
    with pytest.raises(CapacityError, match=r"4 requests of 64 tokens need \d+ .* has 10"):
        make_core(PARTS, Workload(4, 64, num_blocks=10))


@pytest.mark.parametrize("num_tokens", [1, 2, 100])
def test_prompts_have_the_length_that_is_asked_for_and_differ(num_tokens):
    prompts = [make_message("r", num_tokens, 1, first).token_ids for first in (0, 1, 2)]
    assert [len(prompt) for prompt in prompts] == [num_tokens] * 3
    assert len({tuple(prompt) for prompt in prompts}) == 3
