"""What must hold for an engine after every event, whatever the event was."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from quire.engine.request import Request, Status

if TYPE_CHECKING:
    from engine_trial import EngineTrial

    from quire.messages import StepPlan


def check_all(trial: EngineTrial) -> None:
    """See that every invariant holds."""
    _check_pool(trial)
    _check_owners(trial)
    _check_names(trial)
    _check_flights(trial)
    _check_requests(trial)


def _check_pool(trial: EngineTrial) -> None:
    pool = trial.kv.pool
    blank, cached = list(pool._blank), pool.cached_blocks()
    free = {*blank, *cached}
    assert len(free) == len(blank) + len(cached), "a block is free twice"
    assert pool.num_blank + pool.num_cached + pool.num_used == pool.num_usable
    for block in range(1, pool.num_blocks):
        assert (block in free) == (pool.references(block) == 0), f"block {block} is lost"
    assert 0 not in free
    assert not any(pool.content(block) for block in blank), "a blank block can be found"
    assert all(pool.content(block) for block in cached), "a cached block cannot be found"


def _check_owners(trial: EngineTrial) -> None:
    tables = [t for r in trial.scheduler.requests.values() for t in r.block_ids]
    tables += [t for left in trial.scheduler._running._leaving for t in left.tables]
    if trial.transfers is not None:
        tables += [transfer.block_ids for transfer in trial.transfers._open.values()]
    owners = Counter(block for table in tables for block in table if block)
    for block in range(1, trial.kv.pool.num_blocks):
        assert trial.kv.pool.references(block) == owners[block], f"block {block}: {owners}"


def _check_names(trial: EngineTrial) -> None:
    pool = trial.kv.pool
    for block, content in pool._content.items():
        assert content == trial.memory.name_of(block), f"block {block} has a wrong name"
        assert pool.find(*content) == block
    assert sum(map(len, pool._found)) == len(pool._content)


def _check_flights(trial: EngineTrial) -> None:
    for flight in trial.executor.flights:
        for block in flight.blocks:
            assert trial.kv.pool.references(block), f"block {block} is free and in use"


def _check_requests(trial: EngineTrial) -> None:
    assert trial.answers.keys() >= trial.scheduler.requests.keys()
    for request in trial.scheduler.requests.values():
        assert request.num_computed_tokens <= request.last_computed, "over the length"
        if request.status is Status.RUNNING:
            _check_running(trial, request)
        else:
            assert request.block_ids == [[] for _ in trial.kv.specs]
            assert request.slot is None


def _check_running(trial: EngineTrial, request: Request) -> None:
    row = trial.executor.rows[request.slot or 0]
    assert row.given.seed == request.message.seed, "a slot has two owners"
    for mine, theirs in zip(request.block_ids, row.blocks, strict=True):
        assert len(mine) == len(theirs)
        assert all(a in (b, 0) for a, b in zip(mine, theirs, strict=True))
    known = len(request.token_ids)
    assert row.tokens[:known] == request.token_ids
    num_unknown = len(row.tokens) - known
    assert request.num_expected_tokens <= 1 + request.num_drafts_in_flight
    if request.num_drafts_in_flight:
        return
    assert request.num_computed_tokens == row.computed
    assert num_unknown in (0, request.num_expected_tokens) or row.has_failed


def check_budgets(trial: EngineTrial, plan: StepPlan) -> None:
    scene, rows = trial.scene, trial.executor.rows
    assert sum(share.num_tokens for share in plan.requests) <= scene.budget
    assert len(plan.requests) <= scene.max_seqs
    adapters = {rows[share.slot].given.adapter for share in plan.requests} - {None}
    assert len(adapters) <= 2
    if scene.is_chunked and scene.policy == 0:  # a better rank does not wait for its turn
        chunks = [s for s in plan.requests if not s.num_samples]
        assert len(chunks) <= scene.max_partial, "too many prompts are in pieces"


def check_as_new(trial: EngineTrial) -> None:
    scheduler, running = trial.scheduler, trial.scheduler._running
    assert trial.kv.pool.num_used == 0, "blocks are left behind"
    assert sorted(running._free_slots) == list(range(trial.scene.max_seqs))
    assert not any(running.by_slot)
    assert not running._adapters
    assert running.num_leaving_blocks == 0
    assert scheduler.is_settled
    assert not scheduler._sharing._leaders, "a promise is left"
    assert len(scheduler.waiting) == len(scheduler.running) == len(scheduler.requests) == 0
    assert not scheduler._store.is_waiting
    assert sorted(trial.grammars.released) == sorted(trial.grammars.submitted)
    assert trial.core._num_grammars == 0
