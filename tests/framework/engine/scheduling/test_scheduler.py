import msgspec
import pytest
from engine_parts import (
    FirstHasToGo,
    finish_step,
    make_core,
    make_message,
    make_plan,
    make_request,
    make_scheduler,
    num_found,
    run_to_end,
    take,
)
from fickle_store import NEVER, FickleStore

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import MIN_SILENT_STEPS, KVTransfers
from quire.engine.request import Request, Status
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import RefusedError
from quire.messages import (
    EngineStats,
    NewBlocks,
    ScheduledRequest,
    SlotResult,
    TokenPatch,
)
from quire_scheduling_policies.priority import PriorityFirst


def scheduled(plan):
    return [(entry.slot, entry.num_tokens, entry.num_samples) for entry in plan.requests]


def test_a_prompt_within_the_budget_is_one_chunk():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt=range(10)))
    assert scheduled(scheduler.schedule()) == [(0, 10, 1)]


def test_a_long_prompt_is_cut_and_only_its_last_chunk_samples():
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(make_request("a", prompt=range(10)))
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule()
        chunks += scheduled(plan)
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
        assert {(entry.slot, entry.num_tokens) for entry in plan.requests} >= {(0, 1), (1, 1)}
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
    assert scheduled(plan) == [(0, 5, 1)]
    finish_step(scheduler, plan)
    assert (1, 5, 1) in scheduled(scheduler.schedule())


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


def test_the_request_that_came_last_is_preempted():
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
    completions = run_to_end(core)
    for index in range(4):
        start = 100 * index + 11
        assert completions[f"r{index}"] == list(range(start, start + 14))
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


def test_a_completion_ends_at_the_stop_token_and_not_before_min_tokens():
    core, _, _ = make_core()
    core.add(
        make_message("a", prompt=[996], max_tokens=20)
    )  # counts 997, 998, 999, 0 = end of text
    core.add(make_message("b", prompt=[996], max_tokens=20, min_tokens=5))
    core.add(make_message("c", prompt=[996], max_tokens=20, stop_token_ids=(998,)))
    reasons = {}
    completions = {}
    while core.has_work():
        for output in core.step().outputs:
            completions.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                reasons[output.request_id] = (output.finish_reason, output.stop_reason)
    assert completions["a"] == [997, 998, 999, 0]
    assert reasons["a"] == ("stop", None)
    assert len(completions["b"]) == 20
    assert reasons["b"] == ("length", None)
    assert completions["c"] == [997, 998]
    assert reasons["c"] == ("stop", 998)


# -- drafts ----------------------------------------------------------------------------------------


def decoding(*names, prompt=(1, 2, 3), max_tokens=20, **settings):
    """A scheduler with requests that have one generated token."""
    scheduler = make_scheduler(**settings)
    for name in names:
        scheduler.add(make_request(name, prompt=prompt, max_tokens=max_tokens))
    finish_step(scheduler, scheduler.schedule())
    return scheduler


def test_drafts_that_no_worker_verifies_are_refused():
    """A worker that does not verify them would take every draft for right."""
    scheduler = decoding("a", max_tokens=5)
    unverified = Scheduler(scheduler.settings, scheduler.kv, PriorityFirst())
    with pytest.raises(RefusedError, match="no worker of this engine verifies them"):
        unverified.set_drafts("a", [8])


def test_drafts_are_verified_in_one_step_with_blocks_for_all_of_them():
    scheduler = decoding("a")
    assert scheduler.set_drafts("a", [8, 9])
    plan = scheduler.schedule()
    assert plan.requests == [ScheduledRequest(0, 3, 3, [8, 9])]
    assert plan.new_blocks == [NewBlocks(0, 0, [2])]
    (request,) = scheduler.running
    assert (request.num_drafts_in_flight, request.draft_token_ids) == (2, [])
    assert scheduler.schedule().requests == [], "its next token is not known"
    (output,) = take(scheduler, plan, SlotResult(0, [8, 5]))
    assert (output.token_ids, request.token_ids) == ([8, 5], [1, 2, 3, 7, 8, 5])
    assert (request.num_computed_tokens, request.num_drafts_in_flight) == (5, 0)
    assert scheduled(scheduler.schedule()) == [(0, 1, 1)], "each draft is tried once"


def test_drafts_end_where_the_completion_does():
    scheduler = decoding("a", max_tokens=4)
    assert scheduler.set_drafts("a", [1, 2, 3, 4])
    assert scheduled(scheduler.schedule()) == [(0, 3, 3)], "four tokens, the last is never computed"
    assert not decoding("b", max_tokens=2).set_drafts("b", [1])


def test_drafts_need_a_last_token_that_is_known_and_not_computed():
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(make_request("a", prompt=range(10)))
    assert not scheduler.set_drafts("a", [1]), "it waits"
    finish_step(scheduler, scheduler.schedule())
    assert not scheduler.set_drafts("a", [1]), "in the middle of its prompt"
    scheduler = decoding("a")
    scheduler.schedule()
    assert not scheduler.set_drafts("a", [1]), "its token is on its way"


@pytest.mark.parametrize(
    ("drafts", "plan"), [([1, 2], [(0, 3), (1, 1)]), ([1, 2, 3], [(0, 1), (1, 1)])]
)
def test_drafts_leave_each_other_request_its_token(drafts, plan):
    scheduler = decoding("a", "b", prompt=[5], max_num_batched_tokens=4, max_num_seqs=4)
    assert scheduler.set_drafts("a", drafts)
    planned = scheduler.schedule().requests
    assert sorted((entry.slot, entry.num_tokens) for entry in planned) == plan
    assert scheduler.running[0].draft_token_ids == [], "they are not tried later either"


def test_two_requests_have_their_drafts_where_the_budget_holds_both():
    scheduler = decoding("a", "b", prompt=[5], max_num_batched_tokens=4, max_num_seqs=4)
    assert scheduler.set_drafts("a", [1])
    assert scheduler.set_drafts("b", [2])
    planned = scheduler.schedule().requests
    assert sorted((entry.slot, entry.num_tokens) for entry in planned) == [(0, 2), (1, 2)]


def test_drafts_that_find_no_blocks_are_dropped_and_the_request_decodes():
    scheduler = decoding("a", num_blocks=2, max_tokens=2)
    scheduler.running[0].max_total_tokens = 40  # as if it had more to say than fits
    assert scheduler.set_drafts("a", [1, 2, 3, 4])
    assert scheduled(scheduler.schedule()) == [(0, 1, 1)]


def test_a_block_that_drafts_fill_is_found():
    scheduler = decoding("a", enable_prefix_caching=True)
    scheduler.set_drafts("a", [7, 7])
    plan = scheduler.schedule()
    assert scheduler.kv.pool.num_cached == len(scheduler.kv.pool._content) == 0, "not yet"
    take(scheduler, plan, SlotResult(0, [7, 7, 7]))
    assert len(scheduler.kv.pool._content) == 1


def test_a_block_that_drafts_fill_at_the_end_of_a_completion_is_found_while_others_run():
    scheduler = decoding("a", prompt=(1, 2), enable_prefix_caching=True, max_tokens=5)
    scheduler.add(make_request("b", prompt=[9, 9], max_tokens=9))
    finish_step(scheduler, scheduler.schedule())
    assert scheduler.set_drafts("a", [7, 7])
    plan = scheduler.schedule()
    scheduler.schedule()
    outputs = take(scheduler, plan, SlotResult(0, [7, 7, 7]), SlotResult(1, [7]))
    assert [output.finish_reason for output in outputs] == ["length", None]
    assert num_found(scheduler, [1, 2, 7, 7, 7]) == 4


def test_drafts_that_are_all_rejected_bring_one_token_and_do_not_count_as_computed():
    scheduler = decoding("a")
    scheduler.set_drafts("a", [8, 9])
    plan = scheduler.schedule()
    (output,) = take(scheduler, plan, SlotResult(0, [5]))
    (request,) = scheduler.running
    assert (output.token_ids, request.token_ids) == ([5], [1, 2, 3, 7, 5])
    assert (request.num_computed_tokens, request.num_drafts_in_flight) == (4, 0)
    assert scheduled(scheduler.schedule()) == [(0, 1, 1)]


def test_a_request_that_goes_with_drafts_in_flight_waits_for_one_row():
    scheduler = make_scheduler(num_blocks=6, policy=FirstHasToGo())
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(1, 8), max_tokens=9))
    finish_step(scheduler, scheduler.schedule())
    scheduler.set_drafts("a", [1, 2])  # for three blocks: b's third is none
    first = scheduler.schedule()
    scheduler.schedule()
    assert [request.request_id for request in scheduler.running] == ["b"]
    (gone,) = scheduler.waiting
    assert (gone.num_tokens_in_flight, gone.num_drafts_in_flight) == (1, 0)
    (output, _) = take(scheduler, first, SlotResult(0, [1, 5]), SlotResult(1, [7]))
    assert output.token_ids == [1, 5]
    assert (gone.num_tokens_in_flight, gone.num_computed_tokens) == (0, 0)


# -- preemption -----------------------------------------------------------------------------------


def test_a_preempted_request_is_not_in_the_step():
    scheduler = make_scheduler(num_blocks=6, policy=FirstHasToGo())
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(8), max_tokens=8))
    finish_step(scheduler, scheduler.schedule())
    plan = scheduler.schedule()
    assert scheduled(plan) == [(1, 1, 1)]
    assert [new.slot for new in plan.new_blocks] == [1]
    (gone,) = scheduler.waiting
    assert (gone.num_computed_tokens, gone.num_tokens_in_flight) == (0, 0)
    assert (gone.next_check, gone.next_block_end, gone.num_freed) == (0, 0, [0])
    finish_step(scheduler, plan)
    assert len(gone.token_ids) == 9


def test_no_request_starts_in_a_step_with_a_preemption():
    scheduler = make_scheduler(num_blocks=6, policy=PriorityFirst())
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(8), max_tokens=8))
    finish_step(scheduler, scheduler.schedule())
    urgent = msgspec.structs.replace(make_message("urgent", prompt=[1]), priority=-1)
    scheduler.add(Request(urgent, 1))
    plan = scheduler.schedule()
    assert scheduled(plan) == [(0, 1, 1)]
    assert [request.request_id for request in scheduler.waiting] == ["urgent", "b"]
    finish_step(scheduler, plan)
    assert (1, 1, 1) in scheduled(scheduler.schedule())


def test_deferred_blocks_are_waited_for_without_preemption():
    """A prompt lacks three blocks: one is free, and two are just what an aborted request leaves."""
    scheduler = make_scheduler(num_blocks=30, policy=FirstHasToGo(), max_num_batched_tokens=12)
    scheduler.add(make_request("a", prompt=range(4), max_tokens=20))
    finish_step(scheduler, scheduler.schedule())
    scheduler.add(make_request("leaves", prompt=range(8), max_tokens=9))
    scheduler.add(make_request("long", prompt=range(40), max_tokens=9))
    first = scheduler.schedule()
    assert [entry.num_tokens for entry in first.requests] == [1, 8, 3]
    scheduler.remove("leaves")
    taken = scheduler.kv.pool.allocate(scheduler.kv.pool.num_free - 1)
    second = scheduler.schedule()
    assert scheduler.num_preemptions == 0
    assert len(second.requests) == 1, "a goes on; the prompt waits"
    finish_step(scheduler, first)
    assert [entry.num_tokens for entry in scheduler.schedule().requests] == [1, 11]
    assert scheduler.num_preemptions == 0
    assert taken


def test_a_request_that_would_preempt_itself_waits_for_the_step_in_flight():
    scheduler = make_scheduler(num_blocks=6)
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(8), max_tokens=8))
    first = scheduler.schedule()
    second = scheduler.schedule()
    assert scheduled(second) == [(0, 1, 1)], "b lacks a block, and a step in flight may bring one"
    assert scheduler.num_preemptions == 0
    assert not scheduler.is_quiescent
    finish_step(scheduler, first)
    finish_step(scheduler, second)
    assert scheduler.is_quiescent
    scheduler.schedule()
    assert scheduler.num_preemptions == 1


class SecondHasToGo(PriorityFirst):
    """Chooses the second as the victim."""

    def victim(self, running):
        return 1


def begin_with_priority(scheduler, name, length, priority):
    message = make_message(name, prompt=range(length), max_tokens=30)
    scheduler.add(Request(msgspec.structs.replace(message, priority=priority), 1))
    finish_step(scheduler, scheduler.schedule())


def test_the_budget_of_a_prompt_that_has_to_go_goes_to_the_others():
    scheduler = make_scheduler(policy=SecondHasToGo(), max_num_batched_tokens=4)
    for name, length, priority in (("stays", 40, 1), ("decodes", 2, 0), ("goes", 40, 0)):
        begin_with_priority(scheduler, name, length, priority)
    while scheduler.running[0].num_computed_tokens % 4:
        finish_step(scheduler, scheduler.schedule())
    decodes, goes, stays = scheduler.running
    scheduler.kv.pool.allocate(scheduler.kv.pool.num_free)
    plan = scheduler.schedule()
    assert goes.status is Status.WAITING
    assert scheduled(plan) == [(decodes.slot, 1, 1), (stays.slot, 3, 0)]


def test_a_prompt_that_had_to_go_for_another_ones_chunk_has_none():
    scheduler = make_scheduler(policy=SecondHasToGo(), max_num_batched_tokens=8)
    for name, first in (("stays", 0), ("goes", 100)):
        scheduler.add(make_request(name, prompt=range(first, first + 40), max_tokens=4))
        finish_step(scheduler, scheduler.schedule())
    stays, goes = scheduler.running
    scheduler.kv.pool.allocate(scheduler.kv.pool.num_free)
    plan = scheduler.schedule()
    assert scheduled(plan) == [(stays.slot, 4, 0)]
    assert (goes.status, goes.block_ids) == (Status.WAITING, [[]])


def test_running_prompts_of_a_worse_rank_get_the_tokens_that_a_better_one_leaves():
    scheduler = make_scheduler(policy=PriorityFirst(), max_num_batched_tokens=16)
    for name, length, priority in (("a", 90, 1), ("b", 90, 1), ("urgent", 35, 0)):
        begin_with_priority(scheduler, name, length, priority)
    plan = scheduler.schedule()
    assert scheduled(plan) == [(2, 16, 0)], "all of them"
    finish_step(scheduler, plan)
    assert scheduled(scheduler.schedule()) == [(2, 5, 1), (0, 6, 0), (1, 5, 0)]


# -- an interrupt ----------------------------------------------------------------------------------


def test_after_an_interrupt_nothing_of_a_lost_step_is_kept_and_all_begin_again():
    scheduler = make_scheduler(enable_prefix_caching=True, max_num_seqs=3)
    scheduler.add(make_request("a", prompt=range(9), max_tokens=9))
    scheduler.add(make_request("gone", prompt=range(50, 59), max_tokens=9))
    scheduler.schedule()
    scheduler.remove("gone")
    scheduler.discard_steps()
    assert scheduler.is_quiescent
    assert (list(scheduler.running), len(scheduler.waiting)) == ([], 1)
    assert (scheduler.kv.pool.num_used, scheduler.kv.pool.num_cached) == (0, 0)
    plan = scheduler.schedule()
    assert [(given.num_computed_tokens, entry) for given, entry in zip(
        plan.assignments, scheduled(plan), strict=True
    )] == [(0, (plan.assignments[0].slot, 9, 1))]  # fmt: skip
    finish_step(scheduler, plan)
    assert num_found(scheduler, range(9)) == 8, "what is computed again can be found"
    assert scheduler.num_queued == 0


def test_after_an_interrupt_no_request_waits_for_a_lost_token():
    scheduler = make_scheduler(num_blocks=6, policy=FirstHasToGo())
    for name in "ab":
        scheduler.add(make_request(name, prompt=range(8), max_tokens=8))
    scheduler.schedule()
    scheduler.schedule()
    (gone,) = scheduler.waiting
    assert gone.num_tokens_in_flight == 1
    scheduler.discard_steps()
    assert gone.num_tokens_in_flight == 0
    assert [r.num_computed_tokens for r in scheduler.waiting] == [0, 0]
    assert len(scheduler.schedule().requests) == 2


# -- numbers ---------------------------------------------------------------------------------------


def test_statistics_match_the_state():
    scheduler = make_scheduler(num_blocks=12, enable_prefix_caching=True, max_num_seqs=2)
    scheduler.add(make_request("known", prompt=range(9), max_tokens=1))
    finish_step(scheduler, scheduler.schedule())
    scheduler.add(make_request("hits", prompt=[*range(8), 50], max_tokens=30))
    scheduler.add(make_request("looks", prompt=range(9), max_tokens=9, prompt_logprobs=1))
    scheduler.add(make_request("waits", prompt=[1]))
    preparing = make_request("prepares", prompt=[1])
    preparing.status = Status.WAITING_FOR_GRAMMAR
    scheduler.add(preparing)
    finish_step(scheduler, scheduler.schedule())
    assert scheduler.stats(12) == EngineStats(
        num_running=2,
        num_waiting=2,
        num_scheduled_tokens=12,
        num_blocks=11,
        num_used_blocks=2 + 1 + 3,
        num_prefix_queries=18,
        num_prefix_hits=8,
        prefix_hit_rate=8 / 18,
    )
    assert scheduler.num_queued == 2
    assert [request.num_cached_tokens for request in scheduler.running] == [8, 0]
    scheduler.remove("hits")
    assert scheduler.stats(0).num_cached_blocks == 2
    scheduler.kv.pool.allocate(scheduler.kv.pool.num_free)
    stats = scheduler.stats(0)
    assert (stats.num_cached_blocks, stats.num_evictions, stats.num_preemptions) == (0, 2, 0)


def test_the_queue_counts_from_where_there_is_no_slot():
    scheduler = make_scheduler(max_num_seqs=2)
    counts = []
    for name in "abcd":
        scheduler.add(make_request(name))
        counts.append(scheduler.num_queued)
    scheduler.schedule()
    assert (counts, scheduler.num_queued) == ([0, 0, 1, 2], 2)


def test_a_preempted_request_that_finds_its_own_blocks_is_no_hit():
    core, _, _ = make_core(num_blocks=9, enable_prefix_caching=True)
    for index in range(4):
        prompt = range(100 * index + 5, 100 * index + 11)
        core.add(make_message(f"r{index}", prompt=prompt, max_tokens=14))
    cached = []
    while core.has_work():
        cached += [output.num_cached_tokens for output in core.step().outputs]
    assert core.scheduler.num_preemptions > 0
    assert set(cached) == {0}
    assert (core.stats().num_prefix_queries, core.stats().num_prefix_hits) == (4 * 6, 0)


def test_an_expired_request_reports_the_limit_that_it_met():
    scheduler = make_scheduler(request_timeout_s=5.0)
    scheduler.add(Request(make_message("a"), 1, 5.0))
    ((request, report),) = scheduler.pop_expired()
    assert request.request_id == "a"
    assert "request_timeout_s is 5 s" in report.message


def test_a_prompt_goes_on_with_the_tokens_that_a_more_urgent_request_cannot_use():
    scheduler = make_scheduler(policy=PriorityFirst(), max_adapters=1, max_num_batched_tokens=9)
    plans = []
    for name, num_tokens, priority, adapter in (
        ("low", 20, 2, None),
        ("middle", 11, 1, "one"),
        ("urgent", 30, 0, "two"),  # waits for the adapter slot
    ):
        message = make_message(name, prompt=range(num_tokens), adapter=adapter)
        scheduler.add(Request(msgspec.structs.replace(message, priority=priority), 1))
        plans.append(scheduler.schedule())
        finish_step(scheduler, plans[-1])
    assert scheduled(plans[-1]) == [(1, 3, 1), (0, 6, 0)]


# -- pipeline stages -------------------------------------------------------------------------------


def patches(plan):
    return [(patch.slot, patch.position, patch.token_ids) for patch in plan.token_patches]


def test_a_row_of_a_pipeline_waits_for_its_token_which_then_travels_with_it():
    scheduler = make_scheduler(pipeline_parallel_size=2)
    scheduler.add(make_request("a", prompt=range(5)))
    first = scheduler.schedule()
    assert scheduled(first) == [(0, 5, 1)]
    assert scheduler.schedule().requests == [], "its next token is undecided"
    finish_step(scheduler, first, 8)
    second = scheduler.schedule()
    assert scheduled(second) == [(0, 1, 1)]
    assert second.token_patches == [TokenPatch(0, 5, [8])]
    assert scheduler.schedule().requests == []
    finish_step(scheduler, second, 9)
    assert patches(scheduler.schedule()) == [(0, 6, [9])]


def test_a_single_stage_gets_no_patches_and_waits_for_no_token():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt=range(5)))
    plans = [scheduler.schedule() for _ in range(3)]
    assert [scheduled(plan) for plan in plans] == [[(0, 5, 1)], [(0, 1, 1)], [(0, 1, 1)]]
    assert [plan.token_patches for plan in plans] == [[], [], []]


def test_chunks_of_one_prompt_are_in_flight_together():
    scheduler = make_scheduler(pipeline_parallel_size=3, max_num_batched_tokens=4)
    scheduler.add(make_request("a", prompt=range(9)))
    plans = [scheduler.schedule() for _ in range(4)]
    assert [scheduled(plan) for plan in plans] == [[(0, 4, 0)], [(0, 4, 0)], [(0, 1, 1)], []]
    assert [patches(plan) for plan in plans] == [[], [], [], []], "the prompt came with the slot"


def test_a_resumed_request_brings_its_tokens_with_its_slot():
    scheduler = make_scheduler(pipeline_parallel_size=2, num_blocks=6)
    scheduler.add(make_request("a", prompt=range(8), max_tokens=8))
    scheduler.add(make_request("b", prompt=range(8), max_tokens=8))
    finish_step(scheduler, scheduler.schedule())
    plan = scheduler.schedule()
    assert patches(plan) == [(0, 8, [7])]
    finish_step(scheduler, plan)
    plan = scheduler.schedule()
    assert scheduler.num_preemptions == 1, "there is no block for the second token of b"
    finish_step(scheduler, plan)
    scheduler.remove("a")
    plan = scheduler.schedule()
    assert plan.assignments[0].token_ids == [*range(8), 7]
    assert patches(plan) == []
    finish_step(scheduler, plan, 5)
    assert patches(scheduler.schedule()) == [(0, 9, [5])]


def test_a_request_that_has_to_go_in_a_step_leaves_no_patch_behind():
    scheduler = make_scheduler(pipeline_parallel_size=2, policy=FirstHasToGo())
    for name, num_tokens in (("a", 7), ("b", 8), ("c", 7), ("d", 7)):
        scheduler.add(make_request(name, prompt=range(num_tokens), max_tokens=9))
    finish_step(scheduler, scheduler.schedule())
    scheduler.kv.pool.allocate(scheduler.kv.pool.num_free)
    plan = scheduler.schedule()
    assert [request.request_id for request in scheduler.waiting] == ["a"], "b lacks a block"
    assert scheduled(plan) == [(1, 1, 1), (2, 1, 1)]
    assert patches(plan) == [(1, 8, [7]), (2, 7, [7])]


def test_a_step_of_a_pipeline_takes_its_share_of_the_decodes_and_those_that_waited_first():
    scheduler = make_scheduler(pipeline_parallel_size=2)
    for name in "abcde":
        scheduler.add(make_request(name, max_tokens=50))
    finish_step(scheduler, scheduler.schedule())
    first, second = scheduler.schedule(), scheduler.schedule()
    assert [entry.slot for entry in first.requests] == [0, 1]
    assert [entry.slot for entry in second.requests] == [2, 3, 4]
    for name in "fgh":
        scheduler.add(make_request(name, max_tokens=50))
    finish_step(scheduler, first)
    third = scheduler.schedule()
    assert [entry.slot for entry in third.requests] == [0, 1, 5, 6, 7]
    finish_step(scheduler, second)
    finish_step(scheduler, third)
    fourth = scheduler.schedule()
    assert [entry.slot for entry in fourth.requests] == [2, 3, 4, 0]
    assert [entry.slot for entry in scheduler.schedule().requests] == [1, 5, 6, 7]


def test_drafts_are_refused_with_pipeline_stages():
    scheduler = make_scheduler(pipeline_parallel_size=2)
    scheduler.add(make_request("a"))
    finish_step(scheduler, scheduler.schedule())
    with pytest.raises(RefusedError, match="pipeline-parallel-size 1"):
        scheduler.set_drafts("a", [7])


def test_a_store_is_not_silent_while_steps_of_a_pipeline_have_not_reported():
    plan = make_plan(40)
    kv = KVCacheManager(plan)
    store = FickleStore({}, plan)
    store.moods.latency = NEVER
    scheduler = make_scheduler(
        kv=kv,
        transfers=KVTransfers(store, kv, 0.0, "fickle"),
        pipeline_parallel_size=8,
        max_num_batched_tokens=4,
    )
    scheduler.add(make_request("a", prompt=range(60)))
    finish_step(scheduler, scheduler.schedule())
    assert scheduler.transfers.num_open, "its block is saved"
    plans = [scheduler.schedule() for _ in range(MIN_SILENT_STEPS + 1)]
    assert not scheduler.transfers.store.is_off
    for step in plans[:-1]:
        finish_step(scheduler, step)
    scheduler.schedule()
    assert scheduler.transfers.store.is_off
