"""Requests that wait for a KV store, and the number of lookups of a store that only counts."""

import time

import pytest
from engine_parts import make_core, make_message, make_plan, run_to_end

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.kv_store import store_queue
from quire.engine.kv_store.kv_transfers import MAX_LOADS, MIN_SILENT_STEPS, KVTransfers
from quire.engine.kv_store.load_blocks import allocate_cross_blocks
from quire.engine.kv_store.open_transfers import OpenTransfers
from quire.engine.kv_store.store_queue import (
    MAX_PENDING_LOOKUPS,
    MAX_RETRY_S,
    RESULT_TTL_S,
    StoreQueue,
)
from quire.engine.request import Request, Status
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.kv_transfer import CrossGroupBlock, KVLookup, KVStoreScheduler
from quire.messages import TransferReport
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

LATER = KVLookup(is_pending=True)
NOTHING = KVLookup()


class Oracle(KVStoreScheduler):
    """Returns the given result, and counts."""

    def __init__(self, options=None, plan=None):
        self.result = LATER
        self.asked = []
        self.num_loads = 0
        self.saved = []
        self.finished = []
        self.over = []
        self.num_new = 0

    def lookup(self, request_id, block_hashes):
        self.asked.append(request_id)
        return self.result

    def start_load(self, transfer_id, cross_blocks):
        self.num_loads += 1

    def start_save(self, transfer_id, cross_blocks):
        self.saved += cross_blocks
        return self.num_new

    def plan_step(self):
        return b""

    def finish(self, transfer_id, *, has_failed):
        self.finished.append((transfer_id, has_failed))

    def forget_request(self, request_id):
        self.over.append(request_id)

    def reset(self): ...


class Queue(StoreQueue):
    """With its store, and a clock that the test moves."""

    def __init__(self, num_blocks=100, timeout_s=10.0, plan=None, oracle=None):
        self.kv = KVCacheManager(plan or make_plan(num_blocks))
        self.oracle = oracle or Oracle()
        self.num_plans = 0
        self.transfers = KVTransfers(self.oracle, self.kv, timeout_s, "oracle")
        super().__init__(self.kv, self.transfers)

    def request(self, name="a", length=21):
        message = make_message(name, prompt=range(1, 1 + length))
        request = Request(message, len(self.kv.specs))
        self.kv.prepare(request)
        return request

    def ask(self, request, num_running=0):
        return self.try_defer(request, self.kv.find_prefix(request), num_running)

    def plan_step(self):
        """Return the part of the next plan that is for the store."""
        self.num_plans += 1
        return self.transfers.plan_step(self.num_plans)

    def end(self, *, done=(), failed=()):
        """Send the open transfers to the worker side, and report that some have ended."""
        self.plan_step()
        return self.transfers.apply_report(TransferReport(list(done), list(failed)))


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def clock(monkeypatch):
    """The time, as a list of one number."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_is_stored_is_loaded(queue):
    queue.oracle.result = KVLookup(3)
    request = queue.request()
    assert queue.ask(request) is Status.WAITING_FOR_REMOTE_KV
    assert queue.kv.pool.num_used == 3
    assert queue.is_waiting
    queue.remove(request)
    assert queue.pop_ready(time.monotonic() + 5) == []


def test_a_load_does_not_cost_the_hit_before_it():
    queue = Queue(num_blocks=10)
    queue.oracle.result = KVLookup(2)
    request = queue.request()
    hit, *others = queue.kv.pool.allocate(9)
    queue.kv.pool.add_to_cache(hit, 0, request.hashes[1])
    queue.kv.pool.free([hit])  # first, so nothing was used longer ago
    for index, block in enumerate(others[:3]):
        queue.kv.pool.add_to_cache(block, 0, bytes([index]))
        queue.kv.pool.free([block])
    assert queue.ask(request) is Status.WAITING_FOR_REMOTE_KV
    found = queue.kv.find_prefix(request)
    assert found.block_ids == [[hit]]


def test_a_lookup_result_is_valid_for_a_moment_and_for_one_length_of_the_hit(queue, clock):
    queue.oracle.result = NOTHING
    request = queue.request()
    for _ in range(50):
        assert queue.ask(request) is None
    assert len(queue.oracle.asked) == 1
    block = queue.kv.pool.allocate(1)
    queue.kv.pool.add_to_cache(block[0], 0, request.hashes[1])
    queue.ask(request)
    queue.ask(request)
    assert len(queue.oracle.asked) == 2, "what it lacks has changed"
    clock[0] += RESULT_TTL_S
    queue.ask(request)
    assert len(queue.oracle.asked) == 3


def test_a_reset_invalidates_a_lookup_result(queue):
    queue.oracle.result = KVLookup(5)
    request = queue.request()
    queue.kv.pool.allocate(98)
    assert queue.ask(request, 1) is None
    queue.transfers.reset()
    queue.ask(request, 1)
    assert len(queue.oracle.asked) == 2


def test_a_cached_lookup_result_is_used_when_there_is_room(queue):
    queue.oracle.result = KVLookup(5)
    request = queue.request()
    taken = queue.kv.pool.allocate(95)
    assert queue.ask(request, 1) is None, "it could not begin, so nothing is loaded yet"
    assert queue.oracle.num_loads == 0
    queue.kv.pool.free(taken)
    assert queue.ask(request, 1) is Status.WAITING_FOR_REMOTE_KV
    assert len(queue.oracle.asked) == 1


def test_later_is_asked_again_less_and_less_often_and_comes_to_an_end(queue, clock):
    request = queue.request()
    assert queue.ask(request) is Status.WAITING_FOR_KV_LOOKUP
    start_s, num_steps, ready = clock[0], 0, []
    while not ready and num_steps < 100_000:
        clock[0] += 0.001
        num_steps += 1
        ready = queue.pop_ready(clock[0])
    assert ready == [request]
    assert 10.0 <= clock[0] - start_s <= 10.0 + 2 * MAX_RETRY_S
    assert 100 < len(queue.oracle.asked) < 300, "of 10,000 steps"
    assert request.num_loads == MAX_LOADS
    assert not queue.is_waiting
    assert queue.ask(request) is None, "it computes"


def test_a_lookup_that_was_pending_is_not_repeated(queue, clock):
    request = queue.request()
    queue.ask(request)
    queue.oracle.result = KVLookup(5)
    clock[0] += 0.002
    assert queue.pop_ready(clock[0]) == [request]
    assert queue.ask(request) is Status.WAITING_FOR_REMOTE_KV
    assert len(queue.oracle.asked) == 2


def test_later_is_asked_again_for_what_lies_behind_the_hit(queue, clock, monkeypatch):
    hits, look_up = [], queue.transfers.look_up
    monkeypatch.setattr(
        queue.transfers, "look_up", lambda request, hit: hits.append(hit) or look_up(request, hit)
    )
    request = queue.request()
    assert queue.try_defer(request, PrefixHit(2, [[1, 2]], 0), 0) is Status.WAITING_FOR_KV_LOOKUP
    clock[0] += 0.002
    queue.pop_ready(clock[0])
    assert hits == [2, 2]


def test_pending_lookups_per_step_are_limited_and_take_turns(queue, clock):
    requests = [queue.request(f"r{index}") for index in range(1000)]
    assert {queue.ask(request) for request in requests} == {Status.WAITING_FOR_KV_LOOKUP}
    assert len(queue.oracle.asked) == MAX_PENDING_LOOKUPS
    for count in range(2, 1000 // MAX_PENDING_LOOKUPS + 2):
        clock[0] += 0.06
        assert queue.pop_ready(clock[0]) == []
        assert len(queue.oracle.asked) == count * MAX_PENDING_LOOKUPS
    assert len(set(queue.oracle.asked)) > 1000 - MAX_PENDING_LOOKUPS
    queue.oracle.result = NOTHING
    back = []
    for _ in range(1000 // MAX_PENDING_LOOKUPS + 1):
        clock[0] += 0.06
        back += queue.pop_ready(clock[0])
    assert sorted(r.request_id for r in back) == sorted(r.request_id for r in requests)


def test_a_request_that_is_over_is_not_asked_for(queue, clock):
    request = queue.request()
    queue.ask(request)
    queue.remove(request)
    clock[0] += 60.0
    assert queue.pop_ready(clock[0]) == []
    assert len(queue.oracle.asked) == 1
    assert not queue.is_waiting


def test_what_is_too_short_or_was_loaded_often_is_not_asked_for(queue):
    assert queue.ask(queue.request(length=4)) is None
    request = queue.request()
    request.num_loads = MAX_LOADS
    assert queue.ask(request) is None
    assert queue.oracle.asked == []


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_engine_that_waits_for_a_load_does_not_spin(async_scheduling):
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    oracle.result = KVLookup(2)
    transfers = KVTransfers(oracle, kv, 10.0, "oracle")
    core, _, _ = make_core(async_scheduling=async_scheduling, kv=kv, transfers=transfers)
    core.add(make_message("a", prompt=[1] * 20))
    core.step()
    assert core.scheduler.requests["a"].status is Status.WAITING_FOR_REMOTE_KV
    start_s, num_steps = time.monotonic(), 0
    while time.monotonic() - start_s < 0.1:
        core.step()
        num_steps += 1
    assert num_steps <= 100


def test_what_is_open_costs_a_step_nothing(monkeypatch):
    def cost_us(num_open):
        queue = Queue(num_blocks=8 * num_open + 100)
        monkeypatch.setattr(queue.oracle, "start_save", lambda transfer_id, cross_blocks: 1)
        for index in range(num_open):
            request = queue.request(f"r{index}", length=4)
            request.block_ids = [queue.kv.pool.allocate(1)]
            queue.transfers.offer(request, range(1))
        assert queue.transfers.num_open == num_open
        now_s, times = time.monotonic(), []
        for _ in range(50):
            start_s = time.perf_counter()
            queue.pop_ready(now_s)
            queue.plan_step()
            times.append(time.perf_counter() - start_s)
        return 1e6 * min(times)

    assert cost_us(2000) < 5 * cost_us(5) + 20


# -- loads -----------------------------------------------------------------------------------------


def loading(queue, num_blocks=3):
    """A request that waits for a load."""
    queue.oracle.result = KVLookup(num_blocks)
    request = queue.request()
    assert queue.ask(request) is Status.WAITING_FOR_REMOTE_KV
    return request


def test_a_load_that_ended_is_found_with_its_end_to_be_evicted_first(queue):
    request = loading(queue)
    assert queue.end(done=[1]) == [request]
    assert queue.oracle.finished == [(1, False)]
    assert queue.kv.find_prefix(request).num_blocks == 3
    assert queue.kv.pool.num_used == 0
    found = [queue.kv.pool.find(0, name) for name in request.hashes[1:4]]
    assert list(queue.kv.pool._cached) == found[::-1]
    assert queue.transfers.num_hits == 12
    assert not queue.is_waiting


def test_a_load_that_failed_is_not_tried_again(queue):
    request = loading(queue)
    assert queue.end(failed=[1]) == [request]
    assert queue.oracle.finished == [(1, True)]
    assert queue.kv.find_prefix(request) is None
    assert (queue.kv.pool.num_used, queue.transfers.num_hits) == (0, 0)
    assert request.num_loads == MAX_LOADS
    assert queue.ask(request) is None, "it computes"
    assert queue.ask(queue.request("b")) is Status.WAITING_FOR_REMOTE_KV, "another one may"


def test_what_is_evicted_again_and_again_is_loaded_so_many_times(queue):
    queue.oracle.result = KVLookup(3)
    request = queue.request()
    for count in range(1, MAX_LOADS + 1):
        assert queue.ask(request) is Status.WAITING_FOR_REMOTE_KV
        queue.end(done=[count])
        queue.kv.reset()
        assert len(queue.oracle.asked) == count, "the last result is not reused"
    assert queue.ask(request) is None
    assert queue.oracle.num_loads == MAX_LOADS


def test_a_request_that_waits_for_a_load_of_a_store_that_is_off_computes(queue):
    request = loading(queue)
    queue.transfers.store.switch_off("failed")
    assert queue.is_waiting, "it is to be queued again"
    assert queue.pop_ready(0.0) == [request]
    assert queue.pop_ready(0.0) == []
    assert request.num_loads == MAX_LOADS
    assert (queue.transfers.num_open, queue.kv.pool.num_used) == (0, 0), "it was never sent"


def test_a_finished_request_is_not_requeued_when_its_load_is_cancelled(queue):
    request = loading(queue)
    queue.transfers.store.switch_off("failed")
    queue.remove(request)
    assert queue.pop_ready(0.0) == []


def test_a_finished_request_is_not_requeued_when_its_load_ends(queue):
    request = loading(queue)
    queue.remove(request)
    assert queue.end(done=[1]) == []
    assert queue.kv.find_prefix(request).num_blocks == 3, "others find it"


def test_a_load_that_was_sent_keeps_its_blocks_until_the_worker_has_stopped(queue):
    loading(queue)
    queue.plan_step()
    queue.transfers.store.switch_off("failed")
    assert queue.kv.pool.num_used == 3, "the worker side may still write them"
    planned = queue.plan_step()
    assert (queue.transfers.num_open, planned.is_stopped, planned.planned.loads) == (1, True, [])
    queue.transfers.end_all()
    assert (queue.transfers.num_open, queue.kv.pool.num_used) == (0, 0)


def test_after_an_interrupt_what_was_not_confirmed_is_sent_again_until_it_is(queue):
    queue.transfers.interrupt()
    loading(queue)
    plans = [queue.plan_step() for _ in range(3)]
    assert [(plan.resent, plan.applied) for plan in plans] == [((), 0)] * 3
    queue.transfers.confirm(1)
    queue.transfers.interrupt()
    plans.append(queue.plan_step())
    assert plans[3].resent == (plans[1].planned, plans[2].planned)
    assert plans[3].applied == 1
    queue.transfers.interrupt()
    plans.append(queue.plan_step())
    assert plans[4].resent == tuple(plan.planned for plan in plans[1:4])
    assert queue.plan_step().resent == ()
    queue.transfers.confirm(5)
    queue.transfers.interrupt()
    assert [plan.plan_id for plan in queue.plan_step().resent] == [6]
    assert not queue.transfers.store.is_off


def test_what_all_workers_have_received_although_a_step_failed_is_not_sent_again(queue):
    loading(queue)
    queue.plan_step()
    queue.transfers.confirm_sent()
    queue.transfers.interrupt()
    assert queue.plan_step().resent == ()


class Interrupted(Oracle):
    """A store in the middle of one of whose calls an interrupt comes."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def start_load(self, transfer_id, cross_blocks):
        self._may_end("start_load")

    def start_save(self, transfer_id, cross_blocks):
        self._may_end("start_save")
        return 3

    def plan_step(self):
        self._may_end("plan_step")
        return b""

    def finish(self, transfer_id, *, has_failed):
        self._may_end("finish")

    def _may_end(self, call):
        if call == self.call:
            raise KeyboardInterrupt


def load_and_save(queue):
    loading(queue)
    queue.transfers.offer(saving(queue), range(3))
    queue.end(done=[1])


@pytest.mark.parametrize("call", ["start_load", "start_save", "plan_step", "finish"])
def test_an_interrupt_in_the_middle_of_a_call_of_a_store_switches_it_off(call, caplog):
    queue = Queue(oracle=Interrupted(call))
    with pytest.raises(KeyboardInterrupt):
        load_and_save(queue)
    queue.transfers.interrupt()
    assert queue.transfers.store.is_off
    assert "oracle was interrupted in the middle of a call" in caplog.text
    queue.transfers.end_all()
    assert queue.transfers.num_open == 0


def test_an_interrupt_between_two_calls_of_a_store_leaves_it_on(queue):
    loading(queue)
    queue.transfers.interrupt()
    queue.transfers.offer(saving(queue), range(3))
    queue.transfers.interrupt()
    queue.end(done=[1])
    queue.transfers.interrupt()
    assert not queue.transfers.store.is_off


def test_steps_that_failed_do_not_count_as_silence_of_a_store(queue, clock):
    loading(queue)
    for _ in range(5):
        queue.plan_step()
    clock[0] += 11.0
    queue.transfers.confirm_sent()
    queue.pop_ready(clock[0])
    assert not queue.transfers.store.is_off


def test_a_late_load_calls_its_request_at_its_deadline(queue, clock):
    request = loading(queue)
    assert queue.pop_ready(clock[0] + 9.99) == []
    assert queue.pop_ready(clock[0] + 10.0) == [request]
    assert request.num_loads == MAX_LOADS
    assert queue.end(done=[1]) == [], "no request waits any more"


def test_an_unknown_transfer_in_a_report_is_logged(queue, caplog):
    request = loading(queue)
    assert queue.end(done=[99, 1]) == [request]
    assert "oracle reports an unknown transfer" in caplog.text


def test_a_load_that_just_fits_beside_those_that_run_begins():
    for num_free, status in ((7, Status.WAITING_FOR_REMOTE_KV), (6, None)):
        queue = Queue()
        queue.oracle.result = KVLookup(5)
        queue.kv.pool.allocate(99 - num_free)
        assert queue.ask(queue.request(), num_running=1) is status, "six blocks, and one to go on"


def test_a_request_that_runs_alone_loads_what_fits():
    queue = Queue(num_blocks=30)
    queue.oracle.result = KVLookup(5)
    queue.kv.pool.allocate(27)
    assert queue.ask(queue.request()) is Status.WAITING_FOR_REMOTE_KV
    assert queue.kv.pool.num_free == 0


def test_a_silent_store_is_off_after_its_time_and_so_many_steps(queue, clock):
    clock[0] += 1000.0
    loading(queue)
    for _ in range(MIN_SILENT_STEPS - 1):
        queue.plan_step()
    queue.transfers.pop_expired(clock[0] + 1e6)
    assert not queue.transfers.store.is_off, "a step may take long"
    queue.plan_step()
    queue.transfers.pop_expired(clock[0] + 9.99)
    assert not queue.transfers.store.is_off
    queue.transfers.pop_expired(clock[0] + 10.0)
    assert queue.transfers.store.is_off


def test_steps_in_flight_have_not_reported_yet_and_do_not_count_as_silent(queue, clock):
    loading(queue)
    for _ in range(MIN_SILENT_STEPS + 2):
        queue.plan_step()
    queue.pop_ready(clock[0] + 1e6, num_in_flight=3)
    assert not queue.transfers.store.is_off
    queue.pop_ready(clock[0] + 1e6, num_in_flight=2)
    assert queue.transfers.store.is_off


def test_a_store_that_reports_is_not_silent(queue, clock):
    loading(queue)
    queue.ask(queue.request("b"))
    for _ in range(9):
        queue.plan_step()
    clock[0] += 9.0
    queue.end(done=[1])
    queue.transfers.pop_expired(clock[0] + 9.0)
    assert not queue.transfers.store.is_off


# -- saves -----------------------------------------------------------------------------------------


def mixed_plan(num_blocks=41):
    """Full attention, and a window of five tokens."""
    window = KVLayer("layers.1", "spec", 1, 8, (("window", 5),))
    specs = [
        FullAttentionSpec(KVLayer("layers.0", "spec", 1, 8), 4, "float32"),
        SlidingWindowSpec(window, 4, "float32"),
    ]
    return fixed_plan(specs, num_blocks)


def saving(queue, num_blocks=3):
    """A request whose tables have so many blocks."""
    request = queue.request()
    request.block_ids = [queue.kv.pool.allocate(num_blocks) for _ in queue.kv.specs]
    return request


def test_only_whole_cross_group_blocks_are_saved():
    queue = Queue(plan=mixed_plan())
    queue.oracle.num_new = 1
    request = saving(queue)
    full, window = request.block_ids
    queue.kv.pool.free(window[:1])
    window[0] = 0
    queue.transfers.offer(request, range(4))  # of the fourth there is no block
    assert queue.oracle.saved == [
        CrossGroupBlock(request.hashes[index + 1], (full[index], window[index])) for index in (1, 2)
    ]
    assert [queue.kv.pool.references(block) for block in full] == [1, 2, 2]


def test_saves_hold_a_fraction_of_the_pool_in_whole_cross_group_blocks():
    queue = Queue(plan=mixed_plan())
    queue.oracle.num_new = 1
    queue.transfers._open.max_blocks = 5
    request = saving(queue)
    queue.transfers.offer(request, range(3))
    assert len(queue.oracle.saved) == 2
    assert queue.transfers.num_unsaved == 1
    assert queue.transfers._open.room == 1
    queue.transfers.offer(request, range(2, 3))
    assert (len(queue.oracle.saved), queue.transfers.num_unsaved) == (2, 2)
    queue.end(done=[1])
    assert queue.transfers._open.room == 5
    assert queue.transfers.num_hits == 0, "a save brings nothing"


def test_a_save_of_nothing_new_is_over_at_once(queue):
    request = saving(queue)
    queue.transfers.offer(request, range(3))
    assert len(queue.oracle.saved) == 3
    assert queue.transfers.num_open == 0
    assert [queue.kv.pool.references(block) for block in request.block_ids[0]] == [1, 1, 1]
    assert queue.plan_step().planned.saves == []


def test_what_may_not_be_found_is_not_saved(queue):
    request = saving(queue)
    request.is_cacheable = False
    queue.transfers.offer(request, range(3))
    assert queue.oracle.saved == []


def test_a_save_is_announced_once_and_as_a_save(queue):
    queue.oracle.num_new = 3
    queue.transfers.offer(saving(queue), range(3))
    first, second = queue.plan_step().planned, queue.plan_step().planned
    assert (first.loads, first.saves) == ([], [1])
    assert (second.loads, second.saves) == ([], [])
    assert queue.transfers.num_open == 1


# -- the parts -------------------------------------------------------------------------------------


def test_a_small_pool_has_room_for_one_cross_group_block():
    specs = [
        FullAttentionSpec(KVLayer("full", "full", 1, 8), 4, "float32"),
        SlidingWindowSpec(KVLayer("window", "window", 1, 8, (("window", 8),)), 4, "float32"),
    ]
    for num_blocks, expected in ((4, 2), (41, 10)):
        kv = KVCacheManager(fixed_plan(specs, num_blocks))
        assert OpenTransfers(kv).max_blocks == expected


def test_a_load_leaves_so_many_blocks_free(queue):
    cross_blocks = allocate_cross_blocks(
        queue.kv, queue.request(), None, max_blocks=5, room=100, num_reserved=97
    )
    assert len(cross_blocks) == 2
    assert queue.kv.pool.num_free == 97


@pytest.mark.parametrize(("room", "num_cross_blocks"), [(6, 5), (7, 5), (5, 4), (3, 2), (1, 0)])
def test_what_a_window_does_not_need_takes_no_room(room, num_cross_blocks):
    """Of so many cross_blocks a window of five tokens needs one block."""
    queue = Queue(plan=mixed_plan())
    cross_blocks = allocate_cross_blocks(
        queue.kv, queue.request(), None, max_blocks=5, room=room, num_reserved=0
    )
    assert len(cross_blocks) == num_cross_blocks
    assert [bool(cross_block.block_ids[1]) for cross_block in cross_blocks[:-1]] == [False] * (
        num_cross_blocks - 1
    ) * (num_cross_blocks > 0)
    assert queue.kv.pool.num_used == (num_cross_blocks + 1 if num_cross_blocks else 0)


def test_an_engine_with_a_question_is_waiting_for_its_store(queue):
    request = queue.request()
    assert not queue.is_waiting
    assert queue.ask(request) is Status.WAITING_FOR_KV_LOOKUP
    assert queue.is_waiting
    queue.remove(request)
    assert not queue.is_waiting


def test_pending_lookups_are_limited_in_each_step(queue, clock):
    for index in range(MAX_PENDING_LOOKUPS):
        queue.ask(queue.request(f"r{index}"))
    queue.ask(queue.request("one more"))
    assert len(queue.oracle.asked) == MAX_PENDING_LOOKUPS
    assert queue.pop_ready(clock[0]) == []
    queue.ask(queue.request("the next step's"))
    assert len(queue.oracle.asked) == MAX_PENDING_LOOKUPS + 1


def test_cached_lookup_results_are_limited_and_the_oldest_is_removed(queue, clock, monkeypatch):
    monkeypatch.setattr(store_queue, "MAX_RESULTS", 2)
    queue.oracle.result = NOTHING
    a, b, c = (queue.request(name) for name in "abc")
    queue.ask(a)
    clock[0] += RESULT_TTL_S
    queue.ask(b)
    queue.ask(a)  # asked anew, so b's result is the oldest now
    queue.ask(c)
    for request in (a, c, b):
        queue.ask(request)
    assert queue.oracle.asked == ["a", "b", "a", "c", "b"]


def test_nothing_is_remembered_of_a_request_that_is_over():
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    oracle.result = NOTHING
    core, _, _ = make_core(kv=kv, transfers=KVTransfers(oracle, kv, 10.0, "oracle"))
    core.add(make_message("a", prompt=[1] * 20))
    core.step()
    assert len(core.scheduler._store._lookup_results) == 1
    run_to_end(core)
    assert oracle.asked == ["a"]
    assert not core.scheduler._store._lookup_results
    assert oracle.over == ["a"]


@pytest.mark.parametrize("result", [LATER, KVLookup(2)])
def test_a_request_that_is_aborted_while_it_waits_is_gone(result):
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    oracle.result = result
    core, executor, _ = make_core(kv=kv, transfers=KVTransfers(oracle, kv, 0.0, "oracle"))
    core.add(make_message("a", prompt=[1] * 20))
    core.step()
    assert core.scheduler.requests["a"].status in (
        Status.WAITING_FOR_KV_LOOKUP,
        Status.WAITING_FOR_REMOTE_KV,
    )
    core.abort(["a"])
    for _ in range(3):
        core.step()
    assert sum(executor.num_tokens_per_step) == 0


def test_an_engine_computes_while_a_store_loads_and_does_not_wait(monkeypatch):
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    oracle.result = KVLookup(2)
    core, _, _ = make_core(kv=kv, transfers=KVTransfers(oracle, kv, 10.0, "oracle"))
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    core.add(make_message("loads", prompt=[1] * 20))
    core.add(make_message("runs", prompt=[1], max_tokens=9))
    for _ in range(5):
        core.step()
    assert pauses == []
    core.abort(["runs"])
    core.step()
    assert len(pauses) == 1


def test_an_engine_that_waits_for_a_lookup_does_not_spin(monkeypatch):
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    core, _, _ = make_core(kv=kv, transfers=KVTransfers(oracle, kv, 10.0, "oracle"))
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    core.add(make_message("asks", prompt=[1] * 20))
    for _ in range(3):
        core.step()
    assert len(pauses) == 3
    core.add(make_message("never", prompt=[1] * 1000))
    assert len(core.step().outputs) == 1
    assert len(pauses) == 3, "there is something to say"
