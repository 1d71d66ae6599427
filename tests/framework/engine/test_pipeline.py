"""A pipeline's steps in flight: every stage has work, and what waits does so for its own token."""

import random

import pytest
from engine_parts import make_core, make_message, run_to_end
from stage_clock import make_pipeline, step_until

from quire.engine.core import EngineCore
from quire.sampling_params import StructuredOutputsParams

CHOICE = StructuredOutputsParams(choice=("yes", "no"))
ENDLESS = 10_000  # tokens


def add_decodes(core, count, **options):
    for index in range(count):
        core.add(make_message(f"d{index}", prompt=[5], max_tokens=ENDLESS, **options))


def num_chunks_in_flight(clock):
    plans = [plan for plan, _ in clock.launched]
    return sum(any(entry.num_tokens > 1 for entry in plan.requests) for plan in plans)


# -- balance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_stages", [2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 3, 17, 60])
def test_decodes_that_arrive_together_give_every_stage_work(num_stages, extra):
    core, clock, _ = make_pipeline(num_stages)
    add_decodes(core, num_stages + extra)
    step_until(core, clock, 4 * num_stages)
    assert step_until(core, clock, 100) >= 0.9
    sizes = [len(plan.requests) for plan, _ in clock.launched]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_fewer_decodes_than_stages_are_one_a_step(num_stages):
    core, clock, _ = make_pipeline(num_stages)
    add_decodes(core, num_stages - 1)
    step_until(core, clock, 4 * num_stages)
    busy = step_until(core, clock, 200)
    assert busy == pytest.approx((num_stages - 1) / num_stages, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_every_stage_has_work_again_after_arrivals_and_finishes(num_stages, seed):
    rng = random.Random(seed)
    core, clock, _ = make_pipeline(num_stages)
    add_decodes(core, 1)
    names = []
    for round_index in range(20):
        for index in range(rng.randrange(9)):
            names.append(f"r{round_index}.{index}")
            core.add(make_message(names[-1], prompt=[5], max_tokens=ENDLESS))
        while len(names) > num_stages and rng.random() < 0.8:
            names.remove(gone := rng.choice(names))
            core.abort([gone])
        step_until(core, clock, clock.now_s + 3 * num_stages)
        if len(names) + 1 >= num_stages:
            assert step_until(core, clock, clock.now_s + 50) >= 0.9


def test_decodes_that_begin_in_one_step_all_go_on_within_one_turn():
    core, clock, _ = make_pipeline(4)
    add_decodes(core, 40)
    first, later = [], []
    last_s: dict[str, float] = {}
    while clock.now_s < 100:
        for output in core.step().outputs:
            name = output.request_id
            if name in last_s:
                gaps = later if clock.now_s > 20 else first
                gaps.append(clock.now_s - last_s[name])
            last_s[name] = clock.now_s
    assert max(first) == 4 + 3, "the last ones wait for three steps"
    assert set(later) == {4}, "then each has a token in every turn"


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_chunks_of_one_prompt_are_on_every_stage_at_once(num_stages):
    core, clock, _ = make_pipeline(num_stages, max_num_batched_tokens=16)
    core.add(make_message("long", prompt=range(16 * 50), max_tokens=1))
    core.step()
    busy = step_until(core, clock, 40)
    assert num_chunks_in_flight(clock) == num_stages - 1, "the oldest has just completed"
    assert busy >= 0.9
    run_to_end(core)
    assert clock.now_s == 50 + num_stages - 1, "each chunk enters one second after the one before"


@pytest.mark.parametrize("num_decodes", [1, 3, 8])
def test_a_long_prompt_fills_the_stages_and_delays_no_decode(num_decodes):
    core, clock, _ = make_pipeline(4, max_num_batched_tokens=16)
    add_decodes(core, num_decodes)
    step_until(core, clock, 20)
    core.add(make_message("long", prompt=range(16 * 60), max_tokens=1))
    began_s, last_s, gaps = clock.now_s, {}, []
    busy_s = list(clock.busy_s)
    while "long" in core.scheduler.requests:
        for output in core.step().outputs:
            if output.request_id in last_s:
                gaps.append(clock.now_s - last_s[output.request_id])
            last_s[output.request_id] = clock.now_s
    least_s = 0.9 * (clock.now_s - began_s)
    pairs = zip(clock.busy_s, busy_s, strict=True)
    assert max(gaps) <= 5, "a chunk goes before a decode once, where there was a gap between steps"
    assert gaps.count(5) <= num_decodes
    assert gaps.count(4) >= 0.9 * len(gaps), "each decode has a token in every turn of the pipeline"
    assert all(after_s - before_s >= least_s for after_s, before_s in pairs)


# -- grammars --------------------------------------------------------------------------------------


def test_a_row_with_a_grammar_does_not_drain_the_pipeline():
    core, clock, grammars = make_pipeline(4)
    add_decodes(core, 7)
    core.add(make_message("bound", prompt=[5], max_tokens=ENDLESS, structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    step_until(core, clock, 20)
    del clock.num_in_flight[:]
    assert step_until(core, clock, 100) >= 0.9
    assert set(clock.num_in_flight) == {4}, "each step is launched beside three others"
    assert len(grammars.accepted["bound"]) >= 20


def test_masks_of_a_pipeline_follow_all_tokens_before_them():
    core, _, grammars = make_pipeline(3)
    for index in range(6):
        message = make_message(f"g{index}", prompt=[5], max_tokens=9, structured_outputs=CHOICE)
        core.add(message)
        grammars.ready.append((f"g{index}", None))
    counts = []
    ask = grammars.request_masks

    def count(rows):
        counts.extend((name, len(grammars.accepted.get(name, []))) for _, name in rows)
        ask(rows)

    grammars.request_masks = count
    run_to_end(core)
    assert sorted(counts) == [(f"g{index}", n) for index in range(6) for n in range(9)]


def test_masks_wait_for_the_steps_of_their_own_requests_only():
    core, executor, grammars = make_core(async_scheduling=True)
    core.add(make_message("free", prompt=[10], max_tokens=20))
    core.add(make_message("bound", prompt=[20], max_tokens=3, structured_outputs=CHOICE))
    core.step()
    grammars.ready = [("bound", None)]
    num_in_flight = []
    sample = executor.sample

    def note_and_sample(plan_id, masks):
        num_in_flight.append((len(masks), len(executor.plans)))
        sample(plan_id, masks)

    executor.sample = note_and_sample
    completions = run_to_end(core)
    assert completions["bound"] == [21, 22, 23]
    assert num_in_flight[0] == (1, 2), "its prompt is sampled beside a step of the other"
    assert num_in_flight[1:3] == [(1, 1), (1, 1)], "a token is sampled after the one before"
    assert set(num_in_flight[3:]) == {(0, 2)}, "without it, nothing waits"


# -- the loop --------------------------------------------------------------------------------------


def test_a_plan_without_work_completes_one_step():
    core, clock, _ = make_pipeline(4, max_num_batched_tokens=8)
    core.add(make_message("a", prompt=range(24), max_tokens=1))
    for _ in range(3):
        assert core.step().outputs == []
    assert [len(clock.launched)] == [3]
    for num_left in (2, 1):
        assert core.step().outputs == []
        assert len(clock.launched) == num_left
    (output,) = core.step().outputs
    assert output.finish_reason == "length"
    assert not core.has_work()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_as_many_steps_are_in_flight_as_stages(async_scheduling):
    core, clock, grammars = make_pipeline(3)
    core = EngineCore(
        core.scheduler,
        clock,
        clock,
        grammars,
        async_scheduling=async_scheduling,
        pipeline_parallel_size=3,
    )
    add_decodes(core, 30)
    for _ in range(50):
        core.step()
    assert clock.num_in_flight[:4] == [1, 1, 2, 3], "all prompts, then their first tokens"
    assert set(clock.num_in_flight[4:]) == {3}


def test_one_more_step_in_flight_would_delay_every_decode():
    """Bound by memory, a stage takes as long for a third of the decodes as for a half."""
    times = []
    for num_more in (0, 1):
        core, clock, _ = make_pipeline(2, host_s=0.03, max_num_batched_tokens=64)
        core._max_in_flight += num_more
        for index in range(64):  # their prompts take three steps
            core.add(make_message(f"d{index}", prompt=[5, 5, 5], max_tokens=ENDLESS))
        step_until(core, clock, 20)
        known = core.scheduler.requests["d0"].token_ids
        began_s, num_before = clock.now_s, len(known)
        step_until(core, clock, 300)
        times.append((clock.now_s - began_s) / (len(known) - num_before))
    assert times == pytest.approx([2.03, 3.0], rel=0.02)
