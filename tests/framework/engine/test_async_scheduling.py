"""Async scheduling: steps planned before the tokens of the previous step are known."""

import pytest
from engine_parts import (
    CountingExecutor,
    ScriptedGrammars,
    make_core,
    make_message,
    make_scheduler,
    run_to_end,
)
from msgspec.structs import replace

from quire.engine.core import EngineCore
from quire.sampling_params import StructuredOutputsParams


def emitted(core):
    return {output.request_id: output.token_ids for output in core.step().outputs}


def test_tokens_come_one_step_later():
    core, _, _ = make_core(async_scheduling=True)
    core.add(make_message("a", prompt=[10], max_tokens=3))
    assert [emitted(core) for _ in range(4)] == [{}, {"a": [11]}, {"a": [12]}, {"a": [13]}]
    assert not core.has_work()


def test_the_length_is_known_before_and_nothing_is_computed_beyond():
    core, executor, _ = make_core(async_scheduling=True)
    for index in range(5):
        core.add(make_message(f"r{index}", prompt=[10] * (index + 1), max_tokens=index + 1))
    run_to_end(core)
    assert sum(executor.num_tokens_per_step) == sum((n + 1) + n for n in range(5))


def test_a_stop_is_seen_one_step_late_and_the_surplus_is_dropped():
    core, executor, _ = make_core(async_scheduling=True)
    core.add(make_message("a", prompt=[10], max_tokens=50, stop_token_ids=(13,)))
    assert run_to_end(core) == {"a": [11, 12, 13]}
    assert executor.tokens[0] == [10, 11, 12, 13, 14]


def test_blocks_and_slot_are_held_until_the_surplus_has_completed():
    core, executor, _ = make_core(async_scheduling=True, max_num_seqs=1)
    core.add(make_message("a", prompt=[10], max_tokens=50, stop_token_ids=(12,)))
    core.add(make_message("b", prompt=[20], max_tokens=2))
    while "a" in core.scheduler.requests:
        core.step()
    assert core.has_work()
    assert len(executor.plans) == 1, "the surplus is in flight"
    assert core.scheduler.kv.pool.num_used == 1
    assert run_to_end(core) == {"b": [21, 22]}
    assert core.scheduler.kv.pool.num_used == 0


def test_an_abort_while_a_step_is_in_flight_frees_when_it_has_completed():
    core, _, _ = make_core(async_scheduling=True)
    core.add(make_message("a", prompt=range(10), max_tokens=50))
    core.step()
    core.abort(["a"])
    assert core.scheduler.kv.pool.num_used == 3
    assert core.has_work()
    assert emitted(core) == {}
    assert core.scheduler.kv.pool.num_used == 0
    assert not core.has_work()


def test_a_request_preempted_in_flight_keeps_the_token_in_flight():
    core, _, _ = make_core(num_blocks=9, async_scheduling=True)
    for index in range(4):
        start = 100 * index + 5
        core.add(make_message(f"r{index}", prompt=range(start, start + 6), max_tokens=14))
    completions = run_to_end(core)
    assert core.scheduler.num_preemptions > 0
    for index in range(4):
        start = 100 * index + 11
        assert completions[f"r{index}"] == list(range(start, start + 14))


class CarryingExecutor(CountingExecutor):
    """Workers whose sampler steps carry the last token as their state."""

    def execute(self, plan):
        for given in plan.assignments:
            is_fresh = len(given.token_ids) == given.num_prompt_tokens
            assert given.state == ({} if is_fresh else {"last": float(given.token_ids[-1])})
        super().execute(plan)

    def collect(self, plan_id):
        result = super().collect(plan_id)
        rows = [replace(row, state={"last": float(row.token_ids[0])}) for row in result.results]
        return replace(result, results=rows)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_request_preempted_in_flight_has_the_state_of_the_token_in_flight(async_scheduling):
    executor, scheduler = CarryingExecutor(), make_scheduler(9)
    core = EngineCore(
        scheduler, executor, executor, ScriptedGrammars(), async_scheduling=async_scheduling
    )
    for index in range(4):
        start = 100 * index + 5
        core.add(make_message(f"r{index}", prompt=range(start, start + 6), max_tokens=14))
    assert all(len(tokens) == 14 for tokens in run_to_end(core).values())
    assert scheduler.num_preemptions > 0


@pytest.mark.parametrize("budget", [3, 7, 100])
@pytest.mark.parametrize("num_blocks", [9, 12, 100])
@pytest.mark.parametrize("has_cache", [False, True])
def test_completions_are_those_of_the_synchronous_engine(budget, num_blocks, has_cache):
    completions = []
    for async_scheduling in (False, True):
        core, _, _ = make_core(
            num_blocks=num_blocks,
            async_scheduling=async_scheduling,
            max_num_batched_tokens=budget,
            enable_prefix_caching=has_cache,
        )
        for index in range(9):
            prompt = range(5 + index % 2, 12 + index)
            core.add(make_message(f"r{index}", prompt=prompt, max_tokens=9))
        completions.append(run_to_end(core))
    assert completions[0] == completions[1]
    assert all(len(completion) == 9 for completion in completions[0].values())


def test_a_grammar_is_followed_with_the_tokens_of_the_step_before():
    core, _, grammars = make_core(async_scheduling=True)
    grammar = StructuredOutputsParams(choice=("yes", "no"))
    core.add(make_message("bound", prompt=[20], max_tokens=4, structured_outputs=grammar))
    grammars.ready = [("bound", None)]
    assert run_to_end(core) == {"bound": [21, 22, 23, 24]}
    assert grammars.accepted == {"bound": [21, 22, 23]}
    assert grammars.released == ["bound"]


def test_a_failure_is_reported_once():
    core, _, _ = make_core(async_scheduling=True, fail_on=52)
    core.add(make_message("bad", prompt=[50], max_tokens=9))
    errors = []
    while core.has_work():
        errors += [o.error.message for o in core.step().outputs if o.error]
    assert errors == ["token is cursed"]
    assert core.scheduler.kv.pool.num_used == 0


def test_drafts_wait_until_nothing_is_in_flight():
    core, _, _ = make_core(async_scheduling=True)
    core.add(make_message("a", prompt=[10], max_tokens=9))
    core.step()
    assert not core.scheduler.set_drafts("a", [11, 12])
    assert not core.scheduler.set_drafts("nobody", [11])


def test_drafts_wait_for_a_chunk_in_flight_although_the_last_token_is_known():
    core, _, _ = make_core(async_scheduling=True, max_num_batched_tokens=9)
    core.add(make_message("a", prompt=range(10), max_tokens=9, prompt_logprobs=1))
    core.step()
    (request,) = core.scheduler.running
    assert request.num_pending_tokens == 1
    assert not core.scheduler.set_drafts("a", [11])
