"""Rows of a step become outputs of their requests, and what is computed is found from then on."""

import msgspec
import pytest
from engine_parts import (
    finish_step,
    make_core,
    make_message,
    make_request,
    make_scheduler,
    num_found,
    run_to_end,
    take,
)

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.request import Request, Status
from quire.engine.scheduling.step_in_progress import StepInProgress
from quire.interfaces.kv_cache import KVLayer
from quire.messages import ErrorReport, SlotResult, TokenLogprobs
from quire.sampling_params import BeamSearchParams
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

# -- rows ------------------------------------------------------------------------------------------


LOGPROBS = TokenLogprobs([7, 8], [-0.5, -1.0], 1)


def take_rows(scheduler, *rows):
    return take(scheduler, scheduler.schedule(), *rows)


def test_logprobs_come_with_their_tokens_and_end_with_the_completion():
    scheduler = make_scheduler()
    scheduler.add(Request(make_message("a", prompt=[5], max_tokens=4, stop_token_ids=(9,)), 1))
    (first,) = take_rows(scheduler, SlotResult(0, [7], [LOGPROBS]))
    assert (first.token_ids, first.logprobs, first.finish_reason) == ([7], [LOGPROBS], None)
    assert scheduler.set_drafts("a", [8, 9])
    (rest,) = take_rows(scheduler, SlotResult(0, [8, 9, 7], [LOGPROBS] * 3))
    assert (rest.token_ids, rest.logprobs) == ([8, 9], [LOGPROBS] * 2)
    assert (rest.finish_reason, rest.stop_reason) == ("stop", 9)
    assert not scheduler.requests


def test_logprobs_of_the_prompt_come_once_in_chunks_and_with_a_token():
    scheduler = make_scheduler(max_num_batched_tokens=4)
    scheduler.add(Request(make_message("a", prompt=range(1, 8), prompt_logprobs=1), 1))
    (first,) = take_rows(scheduler, SlotResult(0, [], prompt_logprobs=[LOGPROBS] * 4))
    assert (first.token_ids, first.prompt_logprobs) == ([], [LOGPROBS] * 4)
    (second,) = take_rows(scheduler, SlotResult(0, [7], prompt_logprobs=[LOGPROBS] * 2))
    assert (second.token_ids, second.prompt_logprobs) == ([7], [LOGPROBS] * 2)
    scheduler.discard_steps()  # all is computed again
    (third,) = take_rows(scheduler, SlotResult(0, [], prompt_logprobs=[LOGPROBS] * 4))
    (fourth,) = take_rows(scheduler, SlotResult(0, [8], prompt_logprobs=[LOGPROBS] * 2))
    assert (third.prompt_logprobs, fourth.prompt_logprobs) == ([], [])
    assert fourth.token_ids == [8]


def test_the_state_after_the_last_token_comes_with_the_next_assignment():
    scheduler = make_scheduler()
    scheduler.add(Request(make_message("a", prompt=[5], max_tokens=9), 1))
    assert scheduler.schedule().assignments[0].state == {}
    scheduler.discard_steps()
    for number in (1, 2):
        take_rows(scheduler, SlotResult(0, [7], state={"mu": float(number)}))
    scheduler.schedule()
    scheduler.discard_steps()  # the third token is sampled again, from the state after the second
    plan = scheduler.schedule()
    assert (plan.assignments[0].token_ids, plan.assignments[0].state) == ([5, 7, 7], {"mu": 2.0})


def test_a_token_that_is_dropped_changes_no_state_of_the_next_request():
    scheduler = make_scheduler(max_num_seqs=1)
    for name in ("a", "b"):
        scheduler.add(Request(make_message(name, prompt=[5], max_tokens=9, stop_token_ids=(9,)), 1))
    first, second = scheduler.schedule(), scheduler.schedule()
    take(scheduler, first, SlotResult(0, [9], state={"mu": 1.0}))
    take(scheduler, second, SlotResult(0, [7], state={"mu": 2.0}))
    (assignment,) = scheduler.schedule().assignments
    assert (assignment.state, list(scheduler.requests)) == ({}, ["b"])


def test_a_beam_search_with_state_fails_by_the_names_of_the_states():
    scheduler = make_scheduler(max_num_seqs=4)
    beams = BeamSearchParams(beam_width=2)
    message = msgspec.structs.replace(make_message("a", prompt=[5]), beam_search=beams)
    scheduler.add(Request(message, 1))
    row = SlotResult(0, [7], [LOGPROBS], state={"mu": 1.0, "sum": 2.0})
    (failed,) = take_rows(scheduler, row)
    assert (failed.finish_reason, failed.error.code) == ("error", "refused")
    assert "one carries mu, sum; start the engine without that step" in failed.error.message
    assert not scheduler.requests


def test_a_request_with_state_gets_no_drafts():
    scheduler = make_scheduler()
    scheduler.add(Request(make_message("a", prompt=[5], max_tokens=9), 1))
    take_rows(scheduler, SlotResult(0, [7], state={"mu": 1.0}))
    assert not scheduler.set_drafts("a", [8])
    assert scheduler.requests["a"].sampler_state == {"mu": 1.0}


def test_a_result_for_a_slot_without_request_is_an_error_of_the_worker():
    scheduler = make_scheduler()
    scheduler.add(Request(make_message("a"), 1))
    with pytest.raises(RuntimeError, match="slot 3 has a result and no request"):
        take_rows(scheduler, SlotResult(3, [7]))


def test_a_completion_ends_at_its_length_also_within_a_stop_s_min_tokens():
    scheduler = make_scheduler()
    scheduler.add(Request(make_message("a", prompt=[5], max_tokens=2, min_tokens=2), 1))
    assert take_rows(scheduler, SlotResult(0, [0]))[0].finish_reason is None
    (last,) = take_rows(scheduler, SlotResult(0, [0]))
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert not scheduler.requests


def test_a_completion_ends_when_it_repeats_itself():
    scheduler = make_scheduler()
    pattern = {"max_pattern_size": 2, "min_count": 2}
    message = make_message("a", prompt=[5], max_tokens=9, repetition_detection=pattern)
    scheduler.add(Request(message, 1))
    for token_id in (7, 8, 7):
        assert take_rows(scheduler, SlotResult(0, [token_id]))[0].finish_reason is None
    (last,) = take_rows(scheduler, SlotResult(0, [8]))
    assert (last.finish_reason, last.stop_reason) == ("repetition", None)
    assert not scheduler.requests


# -- what is found ---------------------------------------------------------------------------------


def test_a_chunk_is_found_when_it_is_computed_and_not_before():
    scheduler = make_scheduler(enable_prefix_caching=True, max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt=range(30)))
    first = scheduler.schedule()
    assert num_found(scheduler, range(30)) == 0
    second = scheduler.schedule()
    finish_step(scheduler, first)
    assert num_found(scheduler, range(30)) == 8
    scheduler.remove("a")
    assert num_found(scheduler, range(30)) == 8, "the second is in flight"
    finish_step(scheduler, second)
    assert num_found(scheduler, range(30)) == 8
    assert scheduler.is_quiescent
    assert scheduler.kv.pool.num_used == 0


def test_what_an_aborted_request_computed_is_found():
    scheduler = make_scheduler(enable_prefix_caching=True)
    scheduler.add(make_request("a", prompt=range(1, 8), max_tokens=9))
    finish_step(scheduler, scheduler.schedule())
    scheduler.running[0].num_computed_tokens = 8  # its token too, in a step without a result
    scheduler.remove("a")
    assert num_found(scheduler, [*range(1, 8), 7, 1]) == 8


def test_a_block_of_a_completion_is_found_as_soon_as_it_is_computed():
    scheduler = make_scheduler(enable_prefix_caching=True)
    scheduler.add(make_request("a", prompt=range(1, 7), max_tokens=9))
    found = []
    for _ in range(4):
        finish_step(scheduler, scheduler.schedule())
        found.append(num_found(scheduler, [*range(1, 7), 7, 7, 7, 7]))
    assert found == [4, 4, 8, 8], "of 6, 7, 8 and 9 computed tokens"


def test_a_completion_is_found_by_the_next_turn():
    core, _, _ = make_core(enable_prefix_caching=True)
    core.add(make_message("a", prompt=range(1, 7), max_tokens=7))
    assert run_to_end(core) == {"a": list(range(7, 14))}
    assert num_found(core.scheduler, range(1, 20)) == 12, "the last token was never computed"


def test_after_a_reset_what_runs_on_is_not_found():
    scheduler = make_scheduler(enable_prefix_caching=True, max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt=range(30)))
    finish_step(scheduler, scheduler.schedule())
    scheduler.reset_prefix_cache()
    assert num_found(scheduler, range(30)) == 0
    finish_step(scheduler, scheduler.schedule())
    scheduler.remove("a")
    assert num_found(scheduler, range(30)) == 0
    assert scheduler.kv.pool.num_cached == 0


def test_what_a_failed_step_wrote_is_not_found():
    scheduler = make_scheduler(enable_prefix_caching=True)
    scheduler.add(make_request("a", prompt=range(30)))
    plan = scheduler.schedule()
    row = SlotResult(0, [], error=ErrorReport("request_failed", "no"))
    (output,) = take(scheduler, plan, row)
    assert (output.finish_reason, output.error) == ("error", row.error)
    assert num_found(scheduler, range(30)) == 0
    assert scheduler.requests == {}


def test_a_chunk_from_before_a_preemption_is_not_taken_for_one_of_the_new_start():
    scheduler = make_scheduler(enable_prefix_caching=True, max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt=range(30)))
    first = scheduler.schedule()
    (request,) = scheduler.running
    scheduler._preempt(request, StepInProgress(8))
    assert (request.status, request.num_tokens_in_flight) == (Status.WAITING, 0)
    second = scheduler.schedule()
    assert request.slot == 1, "the step in flight uses the other one"
    finish_step(scheduler, first)
    assert num_found(scheduler, range(30)) == 0, "its new blocks are not written yet"
    finish_step(scheduler, second)
    assert num_found(scheduler, range(30)) == 8


def test_prompt_logprobs_of_a_chunk_from_before_a_preemption_are_emitted_once():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt=range(30), prompt_logprobs=0))
    first = scheduler.schedule()
    (request,) = scheduler.running
    scheduler._preempt(request, StepInProgress(8))
    second = scheduler.schedule()
    logprobs = [TokenLogprobs([7], [-0.5], 1)] * 8
    assert take(scheduler, first, SlotResult(0, [], prompt_logprobs=logprobs)) == []
    (output,) = take(scheduler, second, SlotResult(1, [], prompt_logprobs=logprobs))
    assert output.prompt_logprobs == logprobs


def test_prompt_logprobs_of_chunks_in_flight_at_a_preemption_come_in_order():
    scheduler = make_scheduler(max_num_batched_tokens=8, pipeline_parallel_size=3)
    scheduler.add(make_request("a", prompt=range(14), prompt_logprobs=0))
    first, second = scheduler.schedule(), scheduler.schedule()
    (request,) = scheduler.running
    scheduler._preempt(request, StepInProgress(8))
    assert scheduler.schedule().requests == [], "its first token is in flight"
    logprobs = [TokenLogprobs([token], [-0.5], 1) for token in range(1, 14)]
    (output,) = take(scheduler, first, SlotResult(0, [], prompt_logprobs=logprobs[:8]))
    assert output.prompt_logprobs == logprobs[:8]
    (output,) = take(scheduler, second, SlotResult(0, [14], prompt_logprobs=logprobs[8:]))
    assert (output.token_ids, output.prompt_logprobs) == ([14], logprobs[8:])
    third = scheduler.schedule()
    (output,) = take(scheduler, third, SlotResult(0, [], prompt_logprobs=logprobs[:8]))
    assert output.prompt_logprobs == [], "they were emitted before"


def test_what_left_a_window_is_free_as_soon_as_its_step_is_done():
    layer = KVLayer("layers.0", "sliding_window", 1, 8, (("window", 5),))
    kv = KVCacheManager(fixed_plan([SlidingWindowSpec(layer, 4, "float32")], 40))
    scheduler = make_scheduler(kv=kv, max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt=range(24), max_tokens=9))
    used = []
    while scheduler.requests:
        finish_step(scheduler, scheduler.schedule())
        used.append(kv.pool.num_used)
    assert used == [1, 1, 1, 2, 2, 2, 1, 2, 2, 2, 0]
