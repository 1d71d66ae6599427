import pytest
from engine_parts import make_core, make_message, make_request, make_scheduler, run_to_end

from quire.messages import SlotResult, StepResult


def shares(plan):
    return [(share.slot, share.num_tokens, share.num_samples) for share in plan.requests]


def finish_step(scheduler, plan, token_id=7):
    rows = [SlotResult(s.slot, [token_id]) for s in plan.requests if s.num_samples]
    return scheduler.update(plan, StepResult(plan_id=plan.plan_id, results=rows))


def test_a_prompt_within_the_budget_is_one_share():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt=range(10)))
    assert shares(scheduler.schedule()) == [(0, 10, 1)]


def test_a_long_prompt_is_cut_and_only_its_last_chunk_samples():
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(make_request("a", prompt=range(10)))
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule()
        chunks += shares(plan)
        finish_step(scheduler, plan)
    assert chunks == [(0, 4, 0), (0, 4, 0), (0, 2, 1)]


def test_every_running_request_gets_a_token_while_a_prompt_is_computed():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(2), max_tokens=50))
    finish_step(scheduler, scheduler.schedule())
    scheduler.add(make_request("long", prompt=range(40)))
    for _ in range(5):
        plan = scheduler.schedule()
        assert {(share.slot, share.num_tokens) for share in plan.requests} >= {(0, 1), (1, 1)}
        finish_step(scheduler, plan)


def test_requests_run_in_the_order_of_arrival():
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(make_request(name))
    scheduler.schedule()
    assert [request.request_id for request in scheduler.running] == ["a", "b"]
    assert [request.request_id for request in scheduler.waiting] == ["c"]


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it():
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_chunked_prefill=False)
    scheduler.add(make_request("a", prompt=range(5)))
    scheduler.add(make_request("b", prompt=range(5)))
    plan = scheduler.schedule()
    assert shares(plan) == [(0, 5, 1)]
    finish_step(scheduler, plan)
    assert (1, 5, 1) in shares(scheduler.schedule())


def test_blocks_are_sent_once():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt=range(4), max_tokens=9))
    first = scheduler.schedule()
    assert first.assignments[0].block_ids == [[1]]
    assert first.new_blocks == []
    finish_step(scheduler, first)
    second = scheduler.schedule()
    assert second.assignments == []
    assert [(new.slot, new.block_ids) for new in second.new_blocks] == [(0, [2])]
    finish_step(scheduler, second)
    assert scheduler.schedule().new_blocks == []


def test_the_request_that_came_last_gives_its_blocks_back():
    scheduler = make_scheduler(num_blocks=6)  # five blocks of four tokens
    scheduler.add(make_request("a", prompt=range(8), max_tokens=8))
    scheduler.add(make_request("b", prompt=range(8), max_tokens=8))
    finish_step(scheduler, scheduler.schedule())
    scheduler.schedule()
    assert [request.request_id for request in scheduler.running] == ["a"]
    assert [request.request_id for request in scheduler.waiting] == ["b"]
    assert scheduler.num_preemptions == 1
    victim = scheduler.waiting[0]
    assert (victim.num_computed_tokens, victim.slot, victim.block_ids) == (0, None, [[]])
    assert len(victim.token_ids) == 9, "its token is kept and computed again"


def test_a_request_waits_while_those_that_run_will_need_the_blocks():
    scheduler = make_scheduler(num_blocks=5)
    scheduler.add(make_request("a", prompt=range(8), max_tokens=8))
    scheduler.add(make_request("b", prompt=range(8), max_tokens=8))
    scheduler.schedule()
    assert [request.request_id for request in scheduler.running] == ["a"]
    assert scheduler.num_preemptions == 0


def test_preempted_requests_come_back_in_order():
    core, _, _ = make_core(num_blocks=9)
    for index in range(4):
        core.add(
            make_message(
                f"r{index}", prompt=range(100 * index + 5, 100 * index + 11), max_tokens=14
            )
        )
    answers = run_to_end(core)
    for index in range(4):
        start = 100 * index + 11
        assert answers[f"r{index}"] == list(range(start, start + 14))
    assert core.scheduler.num_preemptions > 0
    assert core.scheduler.kv.pool.num_used == 0


def test_adapters_are_a_budget():
    scheduler = make_scheduler(max_adapters=1)
    scheduler.add(make_request("a", adapter="one"))
    scheduler.add(make_request("b", adapter="one"))
    scheduler.add(make_request("c", adapter="two"))
    scheduler.schedule()
    assert [request.request_id for request in scheduler.running] == ["a", "b"]


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_removed_request_leaves_nothing_behind(when):
    scheduler = make_scheduler()
    scheduler.add(make_request("a"))
    if when == "running":
        finish_step(scheduler, scheduler.schedule())
    assert scheduler.remove("a") is not None
    assert scheduler.remove("a") is None
    assert (scheduler.running, list(scheduler.waiting), scheduler.requests) == ([], [], {})
    assert scheduler.kv.pool.num_used == 0


def test_an_answer_ends_at_the_stop_token_and_not_before_min_tokens():
    core, _, _ = make_core()
    core.add(
        make_message("a", prompt=[996], max_tokens=20)
    )  # counts 997, 998, 999, 0 = end of text
    core.add(make_message("b", prompt=[996], max_tokens=20, min_tokens=5))
    core.add(make_message("c", prompt=[996], max_tokens=20, stop_token_ids=(998,)))
    reasons = {}
    answers = {}
    while core.has_work():
        for output in core.step().outputs:
            answers.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                reasons[output.request_id] = (output.finish_reason, output.stop_reason)
    assert answers["a"] == [997, 998, 999, 0]
    assert reasons["a"] == ("stop", None)
    assert len(answers["b"]) == 20
    assert reasons["b"] == ("length", None)
    assert answers["c"] == [997, 998]
    assert reasons["c"] == ("stop", 998)
