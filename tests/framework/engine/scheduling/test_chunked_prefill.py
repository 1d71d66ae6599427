"""Number of tokens that a prompt may start with if it does not fit the step."""

import pytest
from engine_parts import make_request

from quire.config import SchedulerSettings
from quire.engine.scheduling.chunked_prefill import PartialPrefills
from quire.engine.scheduling.step_in_progress import StepInProgress


def prompt(length, rank=0):
    request = make_request("a", prompt=range(length))
    request.key = (rank, 0)
    return request


def first_chunk(pending, *running, budget=20, taken=0, rank=0, chunks=(), **settings):
    """What a prompt that lacks so many tokens may begin with."""
    step = StepInProgress(budget)
    step.prompts = [prompt(length) for length in running]
    for request, count in zip(step.prompts, chunks, strict=False):
        step.add(request, count)
    if taken:
        step.add(prompt(taken), taken)
    limits = PartialPrefills(SchedulerSettings(**settings), step)
    return limits.first_chunk(prompt(pending, rank), pending, step)


@pytest.mark.parametrize(("most", "tokens"), [(1, 0), (2, 0), (3, 20)])
def test_prompts_in_pieces_are_counted(most, tokens):
    assert first_chunk(21, 50, 50, max_num_partial_prefills=most) == tokens


def test_a_prompt_whose_rest_is_in_the_step_is_not_in_pieces():
    assert first_chunk(30, 10, chunks=[10], max_num_partial_prefills=1) == 10
    assert first_chunk(30, 10, chunks=[9], max_num_partial_prefills=1) == 0


@pytest.mark.parametrize(
    ("pending", "running", "tokens"),
    [(51, [100], 0), (50, [100], 20), (51, [50], 20), (100, [100, 40], 0), (100, [], 20)],
)
def test_long_prompts_in_pieces_are_counted(pending, running, tokens):
    limits = {"max_num_partial_prefills": 9, "max_long_partial_prefills": 1}
    assert first_chunk(pending, *running, long_prefill_token_threshold=50, **limits) == tokens
    assert first_chunk(pending, *running, long_prefill_token_threshold=0, **limits) == 20


def test_two_may_be_long():
    limits = {"max_num_partial_prefills": 9, "long_prefill_token_threshold": 50}
    assert first_chunk(90, 60, max_long_partial_prefills=2, **limits) == 20
    assert first_chunk(90, 60, 60, max_long_partial_prefills=2, **limits) == 0


@pytest.mark.parametrize(("rank", "tokens"), [(-1, 20), (0, 0), (1, 0)])
def test_only_a_better_rank_does_not_wait_for_its_turn(rank, tokens):
    assert first_chunk(30, 50, 50, max_num_partial_prefills=1, rank=rank) == tokens


def test_without_chunks_a_prompt_waits_for_a_step_of_its_own():
    assert first_chunk(30, enable_chunked_prefill=False) == 20, "longer than any step: cut"
    assert first_chunk(30, enable_chunked_prefill=False, taken=1) == 0
    assert first_chunk(30, 50, enable_chunked_prefill=False, taken=1, rank=-1) == 0


@pytest.mark.parametrize(("rank", "tokens"), [(4, 20), (5, 0), (6, 0)])
def test_a_prompt_that_goes_before_the_last_that_runs_is_not_held_up(rank, tokens):
    step = StepInProgress(20)
    step.prompts = [prompt(50, rank=0), prompt(50, rank=5)]
    limits = PartialPrefills(SchedulerSettings(max_num_partial_prefills=1), step)
    assert limits.first_chunk(prompt(21, rank), 21, step) == tokens
