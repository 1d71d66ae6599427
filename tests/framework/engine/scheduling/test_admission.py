import msgspec
import pytest
from engine_parts import (
    FirstHasToGo,
    InOrder,
    make_core,
    make_message,
    make_request,
    make_scheduler,
    run_to_end,
)

from quire.engine.request import AdmissionAttempt, Request, Status
from quire.engine.scheduling.admission import RETRY_INTERVAL_STEPS
from quire.messages import SlotResult, StepResult
from quire_scheduling_policies.priority import PriorityFirst


def complete_step(scheduler, plan):
    rows = [SlotResult(s.slot, [7]) for s in plan.requests if s.num_samples]
    return scheduler.update(plan, StepResult(plan_id=plan.plan_id, results=rows))


def step(scheduler):
    """Tokens of each request in the next step, by name."""
    plan = scheduler.schedule()
    tokens = {scheduler.request_in(s.slot).request_id: s.num_tokens for s in plan.requests}
    complete_step(scheduler, plan)
    return tokens


def add(scheduler, name, num_tokens, max_tokens=50, priority=0):
    message = make_message(name, prompt=range(num_tokens), max_tokens=max_tokens)
    scheduler.add(Request(msgspec.structs.replace(message, priority=priority), 1))


def names(requests):
    return [request.request_id for request in requests]


def test_a_short_prompt_passes_a_long_one_that_is_being_computed():
    scheduler = make_scheduler(max_num_batched_tokens=20)
    add(scheduler, "long", 200)
    assert step(scheduler) == {"long": 20}
    add(scheduler, "short", 6)
    assert step(scheduler) == {"long": 14, "short": 6}


def test_those_that_wait_get_half_of_the_budget_at_most():
    scheduler = make_scheduler(num_blocks=300, max_num_batched_tokens=20)
    add(scheduler, "first", 200)
    step(scheduler)
    add(scheduler, "second", 200)
    assert step(scheduler) == {"first": 10, "second": 10}


def test_what_the_queue_does_not_need_goes_to_those_that_run():
    scheduler = make_scheduler(
        num_blocks=300, max_num_batched_tokens=20, max_num_partial_prefills=1
    )
    add(scheduler, "first", 200)
    step(scheduler)
    add(scheduler, "second", 200)
    assert step(scheduler) == {"first": 20}, "no second prompt may be in pieces"


def test_prompts_share_the_budget_evenly():
    scheduler = make_scheduler(num_blocks=300, max_num_batched_tokens=24)
    for name in "abc":
        add(scheduler, name, 200)
        step(scheduler)
    assert step(scheduler) == {"a": 8, "b": 8, "c": 8}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_prompts_in_pieces_are_limited(most):
    scheduler = make_scheduler(max_num_batched_tokens=12, max_num_partial_prefills=most)
    for name in "abcd":
        add(scheduler, name, 100)
    for _ in range(4):
        tokens = step(scheduler)
    assert len(tokens) == most


def test_long_prompts_are_limited_and_short_ones_pass_them():
    scheduler = make_scheduler(
        max_num_batched_tokens=12,
        max_num_partial_prefills=3,
        max_long_partial_prefills=1,
        long_prefill_token_threshold=50,
    )
    for name, num_tokens in (("long", 100), ("longer", 120), ("short", 40), ("shorter", 30)):
        add(scheduler, name, num_tokens)
    for _ in range(3):
        tokens = step(scheduler)
    assert tokens.keys() == {"long", "short", "shorter"}
    assert names(scheduler.waiting) == ["longer"]


def test_a_prompt_that_fits_whole_goes_past_those_that_wait_for_their_turn_in_pieces():
    scheduler = make_scheduler(max_num_batched_tokens=12, max_num_partial_prefills=1)
    for name, num_tokens in (("a", 80), ("b", 80), ("c", 2)):
        add(scheduler, name, num_tokens)
    step(scheduler)
    assert step(scheduler).keys() == {"a", "c"}
    assert names(scheduler.waiting) == ["b"]


def test_the_unused_budget_is_split_equally():
    scheduler = make_scheduler(2000, max_num_batched_tokens=40, max_num_partial_prefills=4)
    for index in range(5):
        add(scheduler, str(index), 400)
    for _ in range(4):
        step(scheduler)
    assert step(scheduler) == {"0": 10, "1": 10, "2": 10, "3": 10}
    computed = [request.num_computed_tokens for request in scheduler.running]
    assert max(computed) - min(computed) <= 40 + 20 + 10  # the first began alone


def test_only_requests_without_an_adapter_go_past_one_that_waits_for_its_adapter():
    scheduler = make_scheduler(max_adapters=1)
    for name, adapter in (("a", "one"), ("b", "two"), ("c", "one"), ("d", None)):
        scheduler.add(make_request(name, adapter=adapter))
    assert step(scheduler).keys() == {"a", "d"}
    assert names(scheduler.waiting) == ["b", "c"]


def test_an_urgent_prompt_does_not_wait_for_less_urgent_ones_in_pieces():
    scheduler = make_scheduler(
        2000, policy=PriorityFirst(), max_num_batched_tokens=20, max_num_partial_prefills=2
    )
    for index in range(3):
        add(scheduler, str(index), 400, priority=1)
    step(scheduler)
    step(scheduler)
    add(scheduler, "urgent", 50)
    seen = [step(scheduler).get("urgent", 0) for _ in range(4)]
    assert sum(seen) >= 50


def test_a_request_that_cannot_begin_is_not_looked_up_every_step():
    scheduler = make_scheduler(num_blocks=40, enable_prefix_caching=True)
    add(scheduler, "runs", 80, max_tokens=60)
    step(scheduler)
    add(scheduler, "waits", 100)
    looks = []
    find = scheduler.kv.find_prefix
    scheduler.kv.find_prefix = lambda request: looks.append(request) or find(request)
    for _ in range(50):
        step(scheduler)
    assert names(scheduler.waiting) == ["waits"]
    assert 1 <= len(looks) <= 3


def test_decodes_never_wait_for_prompts():
    scheduler = make_scheduler(max_num_batched_tokens=4, max_num_seqs=8)
    for name in "ab":
        add(scheduler, name, 2)
    step(scheduler)
    for index in range(5):
        add(scheduler, f"long{index}", 100)
        tokens = step(scheduler)
        assert (tokens["a"], tokens["b"]) == (1, 1)
        assert sum(tokens.values()) == 4


def test_no_more_run_than_a_step_has_tokens():
    scheduler = make_scheduler(max_num_batched_tokens=3, max_num_seqs=8)
    for name in "abcde":
        add(scheduler, name, 1)
    for _ in range(4):
        assert step(scheduler).keys() == set("abc")


def test_without_chunks_a_prompt_longer_than_any_step_is_cut_after_all():
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_chunked_prefill=False)
    add(scheduler, "long", 20)
    assert [step(scheduler) for _ in range(3)] == [{"long": 8}, {"long": 8}, {"long": 4}]


def test_the_lowest_priority_number_goes_first_and_the_highest_has_to_go():
    scheduler = make_scheduler(num_blocks=8, policy=PriorityFirst())
    for name, priority in (("late", 5), ("usual", 0), ("urgent", -1)):
        add(scheduler, name, 8, max_tokens=8, priority=priority)
    complete_step(scheduler, scheduler.schedule())
    assert names(scheduler.running) == ["urgent", "usual"]
    assert names(scheduler.waiting) == ["late"]
    while not scheduler.num_preemptions and len(scheduler.running) == 2:
        complete_step(scheduler, scheduler.schedule())
    assert scheduler.num_preemptions == 1
    assert names(scheduler.running) == ["urgent"]
    assert names(scheduler.waiting) == ["usual", "late"]


def test_an_urgent_request_that_arrives_late_goes_before_those_that_wait():
    scheduler = make_scheduler(max_num_seqs=1, policy=PriorityFirst())
    for name, priority in (("a", 0), ("b", 0), ("urgent", -1)):
        add(scheduler, name, 4, priority=priority)
    step(scheduler)
    assert names(scheduler.running) == ["urgent"]
    assert names(scheduler.waiting) == ["a", "b"]


class OneAtATime(InOrder):
    """Admits one request at a time, and preempts the first."""

    def admits(self, request, running):
        return False


def test_a_policy_decides_which_request_may_start():
    core, executor, _ = make_core(policy=OneAtATime())
    for name in "abc":
        core.add(make_message(name))
    assert run_to_end(core).keys() == set("abc")
    assert len(executor.tokens) == 1, "one slot was ever used"


def test_a_policy_decides_which_request_is_preempted():
    scheduler = make_scheduler(num_blocks=6, policy=FirstHasToGo())
    for name in "ab":
        add(scheduler, name, 8, max_tokens=8)
    step(scheduler)
    step(scheduler)
    assert names(scheduler.running) == ["b"]
    assert names(scheduler.waiting) == ["a"]


def test_many_that_follow_one_prompt_are_looked_at_a_few_at_a_time():
    core, _, _ = make_core(enable_prefix_caching=True, max_num_seqs=4, max_num_queued=500)
    for index in range(300):
        core.add(make_message(f"r{index}", prompt=range(100, 120), max_tokens=2))
    completions = run_to_end(core)
    assert len(completions) == 300
    assert all(completion == [120, 121] for completion in completions.values())


class Diary(InOrder):
    """Records the requests that began and ended."""

    def __init__(self):
        self.notes = []

    def began(self, request):
        self.notes.append(("began", request.request_id))

    def ended(self, request):
        self.notes.append(("ended", request.request_id))


def test_a_policy_is_notified_of_starts_and_ends():
    diary = Diary()
    scheduler = make_scheduler(policy=diary)
    add(scheduler, "a", 3, max_tokens=1)
    add(scheduler, "b", 3)
    step(scheduler)
    scheduler.remove("b")
    assert diary.notes == [("began", "a"), ("began", "b"), ("ended", "a"), ("ended", "b")]


def test_an_urgent_request_that_waits_for_its_adapter_does_not_stop_those_that_run():
    scheduler = make_scheduler(policy=PriorityFirst(), max_adapters=1, max_num_batched_tokens=19)
    for name, adapter, priority in (("low", "one", 1), ("urgent", "two", 0)):
        message = make_message(name, prompt=range(100), adapter=adapter)
        scheduler.add(Request(msgspec.structs.replace(message, priority=priority), 1))
        if name == "low":
            step(scheduler)
    assert step(scheduler) == {"low": 19}
    plan = scheduler.schedule()
    assert [entry.num_tokens for entry in plan.requests] == [19]
    (low,) = scheduler.running
    assert len(low.block_ids[0]) == 15, "57 tokens, of which the last needs a block of its own"
    assert [block for new in plan.new_blocks for block in new.block_ids] == low.block_ids[0][10:]
    complete_step(scheduler, plan)
    assert step(scheduler) == {"low": 19}


def test_an_adapter_that_was_waited_for_begins_when_there_is_a_place():
    core, _, _ = make_core(max_adapters=1)
    for name, adapter in (("a", "one"), ("b", "two"), ("c", "three")):
        core.add(make_message(name, adapter=adapter))
    assert run_to_end(core) == {name: [13, 14, 15, 16] for name in "abc"}


def test_an_urgent_prompt_takes_what_it_can_use_and_leaves_the_others_a_token():
    scheduler = make_scheduler(500, policy=PriorityFirst(), max_num_batched_tokens=20)
    add(scheduler, "low", 400, priority=1)
    step(scheduler)
    add(scheduler, "urgent", 50)
    assert step(scheduler) == {"low": 1, "urgent": 19}
    assert step(scheduler) == {"urgent": 20}, "now that both run, the better rank goes first"


def test_nothing_is_kept_for_a_prompt_of_a_worse_rank():
    scheduler = make_scheduler(500, policy=PriorityFirst(), max_num_batched_tokens=20)
    add(scheduler, "usual", 100)
    step(scheduler)
    add(scheduler, "low", 50, priority=1)
    assert step(scheduler) == {"usual": 20}


def test_the_next_token_of_each_that_runs_keeps_its_block():
    scheduler = make_scheduler(num_blocks=6)
    add(scheduler, "runs", 8, max_tokens=9)
    step(scheduler)
    add(scheduler, "waits", 12)
    assert step(scheduler) == {"runs": 1}, "three blocks are free, and one is spoken for"


@pytest.mark.parametrize(("length", "begins"), [(8, True), (9, False)])
def test_the_rest_of_a_prompt_in_pieces_keeps_its_blocks(length, begins):
    """Of 7 blocks the first chunk has 2, the rest and the next token need 3: so 2 are left."""
    scheduler = make_scheduler(num_blocks=8, max_num_batched_tokens=8)
    add(scheduler, "pieces", 16, max_tokens=9)
    step(scheduler)
    add(scheduler, "other", length, max_tokens=2)
    step(scheduler)
    assert ("other" in names(scheduler.running)) == begins


def test_a_small_request_never_goes_past_one_that_lacks_blocks():
    scheduler = make_scheduler(num_blocks=11)
    add(scheduler, "runs", 8, max_tokens=20)
    step(scheduler)
    add(scheduler, "large", 36, max_tokens=4)
    add(scheduler, "small", 2)
    for _ in range(5):  # its first look, and what is remembered of it
        assert step(scheduler) == {"runs": 1}
    assert names(scheduler.waiting) == ["large", "small"]


def test_no_request_bypasses_one_whose_token_is_in_flight():
    scheduler = make_scheduler()
    for name in "ab":
        add(scheduler, name, 4)
    scheduler.requests["a"].num_tokens_in_flight = 1
    assert not scheduler.schedule().requests
    scheduler.requests["a"].num_tokens_in_flight = 0
    assert step(scheduler) == {"a": 4, "b": 4}


def test_what_was_seen_of_one_that_waits_is_looked_at_again_in_time():
    scheduler = make_scheduler()
    add(scheduler, "runs", 4, max_tokens=90)
    step(scheduler)
    add(scheduler, "waits", 4)
    scheduler.requests["waits"].last_attempt = AdmissionAttempt(
        scheduler._admission._num_steps, 0, 10**6
    )
    num_steps = 0
    while "waits" not in step(scheduler):
        num_steps += 1
    assert num_steps == RETRY_INTERVAL_STEPS - 1


def test_a_request_that_lacked_blocks_starts_when_nothing_runs():
    scheduler = make_scheduler()
    add(scheduler, "waits", 4)
    scheduler.requests["waits"].last_attempt = AdmissionAttempt(1, 0, 10**6)
    assert step(scheduler) == {"waits": 4}
    assert scheduler.running[0].last_attempt is None


def test_one_that_finds_no_room_behind_its_hit_leaves_the_hit_as_it_was():
    scheduler = make_scheduler(num_blocks=12, enable_prefix_caching=True)
    add(scheduler, "known", 9, max_tokens=1)
    step(scheduler)
    pool = scheduler.kv.pool
    taken = pool.allocate(8)
    add(scheduler, "waits", 20, max_tokens=2)
    (request,) = scheduler.waiting
    assert not scheduler.schedule().requests, "a block is blank and two are the hit"
    assert (request.status, request.num_computed_tokens) == (Status.WAITING, 0)
    assert (request.block_ids, request.num_committed_blocks) == ([[]], 0)
    assert (pool.num_used, pool.num_cached) == (8, 2)
    pool.free(taken)
    plan = scheduler.schedule()
    assert [(s.num_tokens, s.num_samples) for s in plan.requests] == [(12, 1)]
    assert plan.assignments[0].num_computed_tokens == 8
    (output,) = complete_step(scheduler, plan)
    assert output.num_cached_tokens == 8


def test_a_prompt_in_pieces_leaves_nothing_of_the_step():
    scheduler = make_scheduler(max_num_batched_tokens=12, max_num_partial_prefills=3)
    for name in "ab":
        add(scheduler, name, 80)
    assert step(scheduler) == {"a": 12}


def test_a_long_prompt_is_one_beyond_the_threshold():
    scheduler = make_scheduler(
        max_num_batched_tokens=12,
        max_num_partial_prefills=3,
        max_long_partial_prefills=1,
        long_prefill_token_threshold=50,
    )
    for name, num_tokens in (("long", 200), ("just not", 50), ("just so", 51)):
        add(scheduler, name, num_tokens)
        step(scheduler)
    step(scheduler)
    assert names(scheduler.running) == ["long", "just not"]
    assert names(scheduler.waiting) == ["just so"]


def test_without_chunks_no_request_bypasses_a_prompt_that_waits_for_an_empty_step():
    scheduler = make_scheduler(max_num_batched_tokens=8, enable_chunked_prefill=False)
    add(scheduler, "runs", 2, max_tokens=4)
    step(scheduler)
    for name, length in (("long", 20), ("small", 1)):
        add(scheduler, name, length)
    assert [step(scheduler) for _ in range(3)] == [{"runs": 1}] * 3
    assert step(scheduler) == {"long": 8}


def test_a_hit_does_not_count_against_the_budget():
    scheduler = make_scheduler(
        enable_prefix_caching=True, max_num_batched_tokens=12, enable_chunked_prefill=False
    )
    add(scheduler, "known", 9, max_tokens=1)
    step(scheduler)
    add(scheduler, "runs", 2)
    step(scheduler)
    add(scheduler, "hits", 16)
    assert step(scheduler) == {"runs": 1, "hits": 8}
