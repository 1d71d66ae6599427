from engine_parts import InOrder, make_plan, make_request

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.waiting_queue import WaitingQueue
from quire.messages import AdapterRef


class Runners:
    """A running set with requests that hold two blocks each."""

    def __init__(self, num_slots=3, max_running=3, max_adapters=1):
        self.kv = KVCacheManager(make_plan(20))
        self.set = RunningSet(self.kv, num_slots, max_running, max_adapters)
        self.queue = WaitingQueue(InOrder())

    def start(self, name, adapter=None):
        request = make_request(name, prompt=range(8), adapter=adapter)
        self.queue.assign_key(request)
        self.kv.grow(request, 8)
        self.set.add(request)
        return request


def test_slots_are_assigned_and_freed():
    runners = Runners()
    a, b = runners.start("a"), runners.start("b")
    assert (a.slot, b.slot, runners.set.num_free_slots) == (0, 1, 1)
    runners.set.remove(a, None)
    assert (a.slot, runners.set.by_slot[0], runners.set.num_free_slots) == (None, None, 2)
    assert runners.start("c").slot == 0


def test_more_do_not_run_than_may_although_slots_are_free():
    runners = Runners(num_slots=3, max_running=1)
    assert runners.set.num_free_slots == 1
    runners.start("a")
    assert runners.set.num_free_slots == 0


def test_blocks_and_slot_wait_for_the_step_in_flight():
    runners = Runners()
    a = runners.start("a")
    runners.set.remove(a, plan_id=7)
    assert runners.kv.pool.num_used == 2
    assert runners.set.num_deferred_blocks == 2
    assert runners.set.by_slot[0] is a, "the step in flight still has a result for it"
    assert runners.start("b").slot == 1
    runners.set.complete_step(6)
    assert runners.set.has_deferred
    runners.set.complete_step(7)
    assert not runners.set.has_deferred
    assert runners.set.num_deferred_blocks == 0
    assert runners.kv.pool.num_used == 2  # of b
    assert runners.set.by_slot[0] is None


def test_blocks_that_others_own_too_are_not_counted_as_coming():
    runners = Runners()
    a = runners.start("a")
    runners.kv.pool.add_references(a.block_ids[0][:1])
    runners.set.remove(a, plan_id=1)
    assert runners.set.num_deferred_blocks == 1


def test_an_adapter_is_counted_by_its_content_and_until_its_last_request_leaves():
    runners = Runners(max_adapters=1)
    a, b = runners.start("a", adapter="one"), runners.start("b", adapter="one")
    assert runners.set.has_room_for(a.adapter)
    assert runners.set.has_room_for(None)
    assert not runners.set.has_room_for(AdapterRef("one", "adapters/one", "another content"))
    runners.set.remove(a, None)
    assert not runners.set.has_room_for(AdapterRef("two", "elsewhere"))
    runners.set.remove(b, None)
    assert runners.set.has_room_for(AdapterRef("two", "elsewhere"))
