import pytest
from engine_parts import make_request

from quire.engine.kv_store.kv_transfers import NO_TRANSFERS
from quire.engine.scheduling.step_in_progress import StepInProgress
from quire.messages import NewBlocks, ScheduledRequest


def with_slot(name, slot, prompt=range(10)):
    request = make_request(name, prompt=prompt)
    request.slot = slot
    return request


def test_the_budget_counts_decodes_and_chunks():
    step = StepInProgress(10)
    step.decodes.append(ScheduledRequest(0, 1, 1))
    step.add(with_slot("a", 1), 4)
    assert (step.budget_left, step.num_tokens) == (5, 5)


def test_two_chunks_of_one_request_are_one():
    step, request = StepInProgress(20), with_slot("a", 1)
    step.add(request, 4)
    step.add(request, 6)
    plan, chunks = step.finish(1, NO_TRANSFERS)
    assert plan.requests == [ScheduledRequest(1, 10, 1)]
    assert [chunk.end for chunk in chunks] == [10]


def test_only_the_last_chunk_of_a_prompt_samples():
    step, request = StepInProgress(20), with_slot("a", 1)
    step.add(request, 9)
    plan, _ = step.finish(1, NO_TRANSFERS)
    assert plan.requests == [ScheduledRequest(1, 9, 0)]
    assert request.num_computed_tokens == 9


def test_a_request_that_is_removed_leaves_no_trace():
    step, stays, goes = StepInProgress(20), with_slot("a", 0), with_slot("b", 1)
    for request in (stays, goes):
        step.decodes.append(ScheduledRequest(request.slot, 1, 1))
        request.num_computed_tokens += 1
        step.note_blocks(request, [[7 + request.slot]])
    step.add(goes, 3)
    step.undo(goes)
    plan, chunks = step.finish(1, NO_TRANSFERS)
    assert plan.requests == [ScheduledRequest(0, 1, 1)]
    assert plan.new_blocks == [NewBlocks(0, 0, [7])]
    assert (goes.num_computed_tokens, step.budget_left, chunks) == (0, 19, [])


def test_drafts_sample_at_every_position_and_are_committed_with_their_result():
    step, request = StepInProgress(20), with_slot("a", 2)
    request.num_computed_tokens = 9
    step.add(request, 3)
    step.drafts[request] = [5, 6]
    plan, chunks = step.finish(1, NO_TRANSFERS)
    assert plan.requests == [ScheduledRequest(2, 3, 3, [5, 6])]
    assert (request.num_computed_tokens, chunks) == (12, [])


def test_drafts_that_are_taken_out_again_are_not_in_flight():
    step, request = StepInProgress(20), with_slot("a", 2)
    step.add(request, 3)
    step.drafts[request] = [5, 6]
    request.num_drafts_in_flight = 2
    step.undo(request)
    assert (request.num_drafts_in_flight, step.num_tokens) == (0, 0)


def test_a_chunk_without_a_slot_is_rejected():
    step = StepInProgress(20)
    step.add(make_request("a"), 1)
    with pytest.raises(RuntimeError, match="request a is scheduled without a slot"):
        step.finish(1, NO_TRANSFERS)
