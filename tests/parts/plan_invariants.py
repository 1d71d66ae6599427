"""Invariants of every plan, checked when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.engine.request import Request, Status

if TYPE_CHECKING:
    from engine_trial import EngineTrial

    from quire.messages import StepPlan


def check_plan(trial: EngineTrial, plan: StepPlan, num_preemptions: int) -> None:
    """See that a plan is fair and complete.

    Args:
        trial: Whose plan it is; nothing has happened since it was made.
        plan: The plan.
        num_preemptions: Those that it took.
    """
    begun = [_owner(trial, given.slot) for given in plan.assignments]
    planned = [_owner(trial, entry.slot) for entry in plan.requests]
    assert {*begun} <= {*planned}, "a request starts without scheduled tokens"
    if trial.executor.num_failed_steps:
        return  # requests are computed alone then
    num_left = trial.scene.budget - sum(entry.num_tokens for entry in plan.requests)
    for waiting in trial.scheduler.waiting:
        passed = [request for request in begun if request.key > waiting.key]
        for request in passed:
            assert _may_pass(trial, request, waiting, num_left), f"{request.request_id} passes"
    if not num_preemptions:
        for request in trial.scheduler.running:
            assert request in planned or _must_pause(trial, request, plan), "one stands still"
        if trial.scene.num_stages > 1 and plan.requests:
            _check_spread(trial, plan, planned)


def _owner(trial: EngineTrial, slot: int) -> Request:
    request = trial.scheduler.request_in(slot)
    assert request is not None, f"slot {slot} is planned and has no request"
    assert (request.status, request.slot) == (Status.RUNNING, slot), "one that is gone is planned"
    return request


def _may_pass(trial: EngineTrial, request: Request, waiting: Request, num_left: int) -> bool:
    """Whether one may begin before another that came first: only where that costs it nothing."""
    if waiting.num_tokens_in_flight:
        return False
    if waiting.adapter is not None and request.adapter is None:
        return True  # it may wait for a place for its adapter
    return trial.scene.is_chunked and len(waiting.token_ids) > num_left  # or for its turn


def _must_pause(trial: EngineTrial, request: Request, plan: StepPlan) -> bool:
    """Whether there is a reason to leave a running request out of a step."""
    num_left = trial.scene.budget - sum(entry.num_tokens for entry in plan.requests)
    if request.num_drafts_in_flight or num_left <= 0:
        return True
    if request.num_computed_tokens >= request.last_computed:
        return True
    if trial.scene.num_stages > 1 and _waits_for_its_turn(trial, request, plan):
        return True
    return _lacks_blocks(trial, request)


def _waits_for_its_turn(trial: EngineTrial, request: Request, plan: StepPlan) -> bool:
    """Whether its token is undecided, or the step of a pipeline has its share of the decodes."""
    if request.num_pending_tokens != 1:
        return not request.num_pending_tokens
    planned, decodes = _decodes(trial, plan)
    return len(planned) >= max(1, len(decodes) // trial.scene.num_stages)


def _decodes(trial: EngineTrial, plan: StepPlan) -> tuple[list[Request], list[Request]]:
    """Return the requests that decode in this step, and all that decode."""
    begun = {given.slot for given in plan.assignments}
    num_planned = {entry.slot: entry.num_tokens for entry in plan.requests}
    old = [r for r in trial.scheduler.running if r.slot not in begun and r.num_pending_tokens <= 1]
    planned = [r for r in old if num_planned.get(r.slot or 0) == 1 and not r.num_pending_tokens]
    return planned, planned + [r for r in old if r.slot not in num_planned]


def _check_spread(trial: EngineTrial, plan: StepPlan, requests: list[Request]) -> None:
    """See that no step takes the decodes of other steps, and that none waits for several turns."""
    num_stages, turns = trial.scene.num_stages, trial.missed_turns
    planned, decodes = _decodes(trial, plan)
    most = max(1, -(-len(decodes) // num_stages))
    assert len(planned) <= most, f"a step takes {len(planned)} of {len(decodes)} decodes"
    for request in requests:
        turns.pop(request, None)
    for request in decodes:
        if request.num_pending_tokens and not _lacks_blocks(trial, request):
            turns[request] += 1
            assert turns[request] < num_stages, f"{request.request_id} waits for several turns"


def _lacks_blocks(trial: EngineTrial, request: Request) -> bool:
    wanted = max(request.num_computed_tokens + 1, len(request.token_ids))
    return sum(trial.kv.missing(request, wanted)) > trial.kv.pool.num_free
