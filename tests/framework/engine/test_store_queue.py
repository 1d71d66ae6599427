"""Who waits for a KV store, and how often it is asked: counted, with a store that only answers."""

import time

import pytest
from engine_parts import make_core, make_message, make_plan, make_request

from quire.engine.kv_cache import KVCacheManager
from quire.engine.kv_transfers import MAX_LOADS, KVTransfers
from quire.engine.request import Status
from quire.engine.store_queue import FRESH_S, MAX_ASKED, MAX_PAUSE_S, StoreQueue
from quire.interfaces.kv_transfer import KVLookup, KVStoreScheduler

LATER = KVLookup(is_pending=True)
NOTHING = KVLookup()


class Oracle(KVStoreScheduler):
    """Answers what it is told to answer, and counts."""

    def __init__(self, options=None, plan=None):
        self.answer = LATER
        self.asked = []
        self.num_loads = 0

    def lookup(self, request_id, block_hashes):
        self.asked.append(request_id)
        return self.answer

    def start_load(self, transfer_id, columns):
        self.num_loads += 1

    def start_save(self, transfer_id, columns):
        return 0

    def plan_step(self):
        return b""

    def finish(self, transfer_id, *, has_failed): ...

    def reset(self): ...


class Queue(StoreQueue):
    """With its store, and a clock that the test moves."""

    def __init__(self, num_blocks=100, timeout_s=10.0):
        self.kv = KVCacheManager(make_plan(num_blocks))
        self.oracle = Oracle()
        self.transfers = KVTransfers(self.oracle, self.kv, timeout_s, "oracle")
        super().__init__(self.kv, self.transfers)

    def request(self, name="a", length=21):
        request = make_request(name, prompt=range(1, 1 + length))
        self.kv.prepare(request)
        return request

    def ask(self, request, num_running=0):
        return self.sets_aside(request, self.kv.find_prefix(request), num_running)


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def clock(monkeypatch):
    """The time, as a list of one number."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_without_a_store_nobody_waits():
    kv = KVCacheManager(make_plan(10))
    queue = StoreQueue(kv, None)
    request = make_request("a", prompt=[1] * 20)
    kv.prepare(request)
    assert queue.sets_aside(request, None, 0) is None
    assert queue.call_back(0.0) == []
    assert not queue.is_waiting


def test_what_is_stored_is_loaded(queue):
    queue.oracle.answer = KVLookup(3)
    request = queue.request()
    assert queue.ask(request) is Status.LOADING
    assert queue.kv.pool.num_used == 3
    assert queue.is_waiting
    queue.leave(request)
    assert queue.call_back(time.monotonic() + 5) == []


def test_a_load_does_not_cost_the_hit_before_it():
    queue = Queue(num_blocks=10)
    queue.oracle.answer = KVLookup(2)
    request = queue.request()
    hit, *others = queue.kv.pool.take(9)
    queue.kv.pool.keep(hit, 0, request.hashes[1])
    queue.kv.pool.give_back([hit])  # first, so nothing was used longer ago
    for index, block in enumerate(others[:3]):
        queue.kv.pool.keep(block, 0, bytes([index]))
        queue.kv.pool.give_back([block])
    assert queue.ask(request) is Status.LOADING
    found = queue.kv.find_prefix(request)
    assert found.block_ids == [[hit]]


def test_an_answer_holds_for_a_moment_and_for_one_length_of_the_hit(queue, clock):
    queue.oracle.answer = NOTHING
    request = queue.request()
    for _ in range(50):
        assert queue.ask(request) is None
    assert len(queue.oracle.asked) == 1
    block = queue.kv.pool.take(1)
    queue.kv.pool.keep(block[0], 0, request.hashes[1])
    queue.ask(request)
    queue.ask(request)
    assert len(queue.oracle.asked) == 2, "what it lacks has changed"
    clock[0] += FRESH_S
    queue.ask(request)
    assert len(queue.oracle.asked) == 3


def test_a_reset_makes_an_answer_void(queue):
    queue.oracle.answer = KVLookup(5)
    request = queue.request()
    queue.kv.pool.take(98)
    assert queue.ask(request, 1) is None
    queue.transfers.reset()
    queue.ask(request, 1)
    assert len(queue.oracle.asked) == 2


def test_a_remembered_answer_is_used_when_there_is_room(queue):
    queue.oracle.answer = KVLookup(5)
    request = queue.request()
    taken = queue.kv.pool.take(95)
    assert queue.ask(request, 1) is None, "it could not begin, so nothing is loaded yet"
    assert queue.oracle.num_loads == 0
    queue.kv.pool.give_back(taken)
    assert queue.ask(request, 1) is Status.LOADING
    assert len(queue.oracle.asked) == 1


def test_later_is_asked_again_less_and_less_often_and_comes_to_an_end(queue, clock):
    request = queue.request()
    assert queue.ask(request) is Status.ASKING
    start_s, num_steps, ready = clock[0], 0, []
    while not ready and num_steps < 100_000:
        clock[0] += 0.001
        num_steps += 1
        ready = queue.call_back(clock[0])
    assert ready == [request]
    assert 10.0 <= clock[0] - start_s <= 10.0 + 2 * MAX_PAUSE_S
    assert 100 < len(queue.oracle.asked) < 300, "of 10,000 steps"
    assert request.num_loads == MAX_LOADS
    assert not queue.is_waiting
    assert queue.ask(request) is None, "it computes"


def test_an_answer_that_came_later_is_not_asked_for_again(queue, clock):
    request = queue.request()
    queue.ask(request)
    queue.oracle.answer = KVLookup(5)
    clock[0] += 0.002
    assert queue.call_back(clock[0]) == [request]
    assert queue.ask(request) is Status.LOADING
    assert len(queue.oracle.asked) == 2


def test_a_step_hears_later_so_many_times_and_everybody_has_a_turn(queue, clock):
    requests = [queue.request(f"r{index}") for index in range(1000)]
    assert {queue.ask(request) for request in requests} == {Status.ASKING}
    assert len(queue.oracle.asked) == MAX_ASKED
    for count in range(2, 1000 // MAX_ASKED + 2):
        clock[0] += 0.06
        assert queue.call_back(clock[0]) == []
        assert len(queue.oracle.asked) == count * MAX_ASKED
    assert len(set(queue.oracle.asked)) > 1000 - MAX_ASKED
    queue.oracle.answer = NOTHING
    back = []
    for _ in range(1000 // MAX_ASKED + 1):
        clock[0] += 0.06
        back += queue.call_back(clock[0])
    assert sorted(r.request_id for r in back) == sorted(r.request_id for r in requests)


def test_a_request_that_is_over_is_not_asked_for(queue, clock):
    request = queue.request()
    queue.ask(request)
    queue.leave(request)
    clock[0] += 60.0
    assert queue.call_back(clock[0]) == []
    assert len(queue.oracle.asked) == 1
    assert not queue.is_waiting


def test_what_is_too_short_or_was_loaded_often_is_not_asked_for(queue):
    assert queue.ask(queue.request(length=4)) is None
    request = queue.request()
    request.num_loads = MAX_LOADS
    assert queue.ask(request) is None
    assert queue.oracle.asked == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_engine_that_waits_for_a_load_does_not_spin(is_ahead):
    kv, oracle = KVCacheManager(make_plan(100)), Oracle()
    oracle.answer = KVLookup(2)
    transfers = KVTransfers(oracle, kv, 10.0, "oracle")
    core, _, _ = make_core(is_ahead=is_ahead, kv=kv, transfers=transfers)
    core.add(make_message("a", prompt=[1] * 20))
    core.step()
    assert core.scheduler.requests["a"].status is Status.LOADING
    start_s, num_steps = time.monotonic(), 0
    while time.monotonic() - start_s < 0.1:
        core.step()
        num_steps += 1
    assert num_steps <= 100


def test_what_is_open_costs_a_step_nothing(monkeypatch):
    def cost_us(num_open):
        queue = Queue(num_blocks=8 * num_open + 100)
        monkeypatch.setattr(queue.oracle, "start_save", lambda transfer_id, columns: 1)
        for index in range(num_open):
            request = queue.request(f"r{index}", length=4)
            request.block_ids = [queue.kv.pool.take(1)]
            queue.transfers.offer(request, range(1))
        assert queue.transfers.num_open == num_open
        now_s, times = time.monotonic(), []
        for _ in range(50):
            start_s = time.perf_counter()
            queue.call_back(now_s)
            queue.transfers.plan_step()
            times.append(time.perf_counter() - start_s)
        return 1e6 * min(times)

    assert cost_us(2000) < 5 * cost_us(5) + 20
