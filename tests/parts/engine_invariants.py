"""Invariants of an engine, checked after every event of a trial."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from quire.engine.kv_cache.block_map import block_map
from quire.engine.kv_store.kv_transfers import MAX_LOADS
from quire.engine.request import Request, Status
from quire.messages import FIRST_OWNER, BlockState, EngineStats

if TYPE_CHECKING:
    from engine_trial import EngineTrial

    from quire.engine.kv_store.kv_transfers import KVTransfers
    from quire.messages import StepPlan


def check_all(trial: EngineTrial) -> None:
    """See that every invariant holds."""
    _check_pool(trial)
    _check_owners(trial)
    _check_names(trial)
    _check_flights(trial)
    _check_requests(trial)
    _check_places(trial)
    _check_running_set(trial)
    _check_sharing(trial)
    _check_store(trial)
    _check_gone(trial)
    _check_block_map(trial)


def _check_pool(trial: EngineTrial) -> None:
    pool = trial.kv.pool
    blank, cached = list(pool._blank), list(pool._cached)
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
    tables += [t for left in trial.scheduler._running._deferred for t in left.tables]
    if trial.transfers is not None:
        tables += [transfer.block_ids for transfer in trial.transfers._open.values()]
    owners = Counter(block for table in tables for block in table if block)
    for block in range(1, trial.kv.pool.num_blocks):
        assert trial.kv.pool.references(block) == owners[block], f"block {block}: {owners}"


def _check_block_map(trial: EngineTrial) -> None:
    """See that the map for people is that of the pool and of the block tables."""
    pool, running = trial.kv.pool, trial.scheduler.running
    owners: dict[int, set[int | None]] = {}
    for request in running:
        for block in (block for table in request.block_ids for block in table):
            owners.setdefault(block, set()).add(request.slot)
    for max_cells in (pool.num_blocks, 7):
        found = block_map(pool, running, max_cells)
        codes = memoryview(found.codes).cast("H")
        assert len(codes) <= max_cells
        assert len(codes) == -(-pool.num_blocks // found.blocks_per_cell)
        for cell, code in enumerate(codes):
            block = cell * found.blocks_per_cell
            holder, is_cached = divmod(code, 2)
            if block == 0:
                assert code == 2 * BlockState.NULL
                continue
            assert is_cached == (pool.content(block) is not None)
            assert holder == _holder(owners.get(block, set()), pool.references(block))


def _holder(slots: set[int | None], num_references: int) -> int:
    if not slots:
        return BlockState.HELD if num_references else BlockState.FREE
    return BlockState.SHARED if len(slots) > 1 else FIRST_OWNER + (next(iter(slots)) or 0)


def _check_names(trial: EngineTrial) -> None:
    pool = trial.kv.pool
    for block, content in pool._content.items():
        assert content == trial.memory.name_of(block), f"block {block} has a wrong name"
        assert pool.find(*content) == block
    assert sum(map(len, pool._block_of)) == len(pool._content)


def _check_flights(trial: EngineTrial) -> None:
    for flight in trial.executor.flights:
        for block in flight.blocks:
            assert trial.kv.pool.references(block), f"block {block} is free and in use"


def _check_requests(trial: EngineTrial) -> None:
    assert trial.completions.keys() >= trial.scheduler.requests.keys()
    for request in trial.scheduler.requests.values():
        assert request.num_computed_tokens <= request.last_computed, "over the length"
        if request.status is Status.RUNNING:
            _check_running(trial, request)
        else:
            assert request.block_ids == [[] for _ in trial.kv.specs]
            assert request.slot is None


def _check_places(trial: EngineTrial) -> None:
    """See that each request is where its status says, and nowhere else."""
    scheduler, core = trial.scheduler, trial.core
    by_status: dict[Status, list[Request]] = {status: [] for status in Status}
    for request in scheduler.requests.values():
        by_status[request.status].append(request)
    assert not by_status[Status.FINISHED], "one that is over is not forgotten"
    for status, queue in (
        (Status.WAITING, scheduler.waiting),
        (Status.RUNNING, scheduler.running),
    ):
        assert list(queue) == sorted(by_status[status], key=lambda r: r.key), status
    preparing = {request.request_id for request in by_status[Status.WAITING_FOR_GRAMMAR]}
    assert preparing == core._preparing
    assert core._num_grammars == sum(r.has_grammar for r in scheduler.requests.values())
    store = scheduler._store
    lookups = set() if store is None else set(store._pending_lookups)
    assert set(by_status[Status.WAITING_FOR_KV_LOOKUP]) == lookups
    loading = [] if trial.transfers is None else _loading(trial.transfers)
    assert sorted(by_status[Status.WAITING_FOR_REMOTE_KV], key=id) == sorted(loading, key=id)
    results = set() if store is None else set(store._lookup_results)
    assert results <= set(scheduler.requests.values())
    assert sorted(map(id, trial.policy.running)) == sorted(map(id, scheduler.running))


def _loading(transfers: KVTransfers) -> list[Request]:
    """Return those that wait for a load, or for the word that it will not come."""
    return [*transfers._open._waiters, *transfers._cancelled]


def _check_running_set(trial: EngineTrial) -> None:
    running = trial.scheduler._running
    leaving = [left.slot for left in running._deferred]
    slots = [request.slot for request in running.requests]
    assert sorted([*slots, *leaving, *running._free_slots]) == list(range(trial.scene.max_seqs))
    for request in running.requests:
        assert running.by_slot[request.slot or 0] is request
    assert not any(running.by_slot[slot] for slot in running._free_slots)
    adapters = Counter(r.adapter for r in running.requests if r.adapter is not None)
    assert running._adapters == adapters
    assert len(adapters) <= 2
    assert running.num_deferred_blocks == sum(left.num_blocks for left in running._deferred)
    assert bool(leaving) <= bool(trial.executor.flights), "what left waits for nothing"


def _check_sharing(trial: EngineTrial) -> None:
    """See that every follower has a leader that computes what it waits for."""
    requests, leaders = trial.scheduler.requests.values(), trial.scheduler._sharing._leaders
    promised = {name: r for r in requests for name in r.promised_hashes}
    assert promised == leaders
    assert all(leader.status is Status.RUNNING for leader in leaders.values())
    for request in requests:
        is_following = request.status is Status.WAITING_FOR_PREFIX
        assert (request.leader is not None) == (request.awaited_hash is not None) == is_following
        if request.leader is not None:
            assert request in request.leader.followers
            assert leaders[request.awaited_hash or b""] is request.leader
        for follower in request.followers:
            assert trial.scheduler.requests.get(follower.request_id) is follower, "it is gone"
            assert follower.leader is request


def _check_store(trial: EngineTrial) -> None:
    if trial.transfers is None:
        return
    opened = trial.transfers._open
    assert opened._num_blocks == sum(len(transfer.block_ids) for transfer in opened.values())
    assert opened._unsent.keys() <= opened._open.keys()
    for request, transfer in opened._waiters.items():
        assert transfer.request is request
        assert transfer.is_load
        assert opened.find(transfer.transfer_id) is transfer
    assert all(r.num_loads <= MAX_LOADS for r in trial.scheduler.requests.values())


def _check_gone(trial: EngineTrial) -> None:
    """See that a request which is over owns nothing, waits for nothing and has no followers."""
    there = set(trial.scheduler.requests.values())
    gone, trial.seen = trial.seen - there, there
    for request in gone:
        assert request.status is Status.FINISHED
        assert request.slot is None
        assert not any(request.block_ids)
        assert [request.promised_hashes, request.followers, request.leader] == [[], [], None]


def _check_running(trial: EngineTrial, request: Request) -> None:
    room = min(len(table) for table in request.block_ids) * trial.kv.block_size
    assert request.next_check <= request.last_computed
    if not any(trial.memory.is_state(group) for group in range(len(trial.kv.specs))):
        assert request.next_check <= room, "its tables do not reach its next check"
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
    assert sum(entry.num_tokens for entry in plan.requests) <= scene.budget
    assert len(plan.requests) <= scene.max_seqs
    adapters = {rows[entry.slot].given.adapter for entry in plan.requests} - {None}
    assert len(adapters) <= 2
    if scene.is_chunked and scene.policy == 0:  # a better rank does not wait for its turn
        chunks = [s for s in plan.requests if not s.num_samples]
        assert len(chunks) <= scene.max_partial, "too many prompts are in pieces"


def check_stats(trial: EngineTrial, stats: EngineStats, plan: StepPlan | None) -> None:
    """See that what a step says of the engine is so."""
    scheduler, pool, counts = trial.scheduler, trial.kv.pool, trial.counts
    store_hits = 0 if trial.transfers is None else trial.transfers.num_hits
    num_tokens = 0 if plan is None else sum(entry.num_tokens for entry in plan.requests)
    requests = scheduler.requests.values()
    num_running = sum(request.status is Status.RUNNING for request in requests)
    usable = range(1, pool.num_blocks)
    assert stats == EngineStats(
        num_running=num_running,
        num_waiting=len(requests) - num_running,
        num_scheduled_tokens=num_tokens,
        num_blocks=len(usable),
        num_used_blocks=sum(bool(pool.references(block)) for block in usable),
        num_cached_blocks=len(pool._cached),
        num_preemptions=scheduler.num_preemptions,
        num_evictions=pool.num_evictions,
        num_prefix_queries=counts["prefix queries"],
        num_prefix_hits=counts["prefix hits"],
        prefix_hit_rate=stats.prefix_hit_rate,
        num_store_hits=store_hits,
        num_grammars_waiting=len(scheduler.requests.keys() & set(trial.grammars.due)),
        num_grammars_compiled=stats.num_grammars_compiled,
        grammar_wait_s=stats.grammar_wait_s,
    )
    assert bool(stats.grammar_wait_s) <= bool(stats.num_grammars_compiled)


def check_late(trial: EngineTrial, began_s: float) -> None:
    """See that no request is there whose time was up when the step began."""
    for request in trial.scheduler.requests.values():
        timeout_s = request.message.timeout_s
        assert timeout_s is None or began_s < request.arrival_s + timeout_s, "it is late"


def check_as_new(trial: EngineTrial) -> None:
    scheduler, running = trial.scheduler, trial.scheduler._running
    assert trial.kv.pool.num_used == 0, "blocks are left behind"
    assert sorted(running._free_slots) == list(range(trial.scene.max_seqs))
    assert not any(running.by_slot)
    assert not running._adapters
    assert running.num_deferred_blocks == 0
    assert scheduler.is_quiescent
    assert not scheduler._sharing._leaders, "a promise is left"
    assert len(scheduler.waiting) == len(scheduler.running) == len(scheduler.requests) == 0
    assert not scheduler.is_waiting_for_store
    assert scheduler._store is None or not scheduler._store._lookup_results
    assert sorted(trial.grammars.released) == sorted(trial.grammars.submitted)
    assert trial.core._num_grammars == 0
