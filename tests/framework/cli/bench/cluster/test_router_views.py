"""Changes of simulated caches arrive late, in part, and a lost one is made good by a snapshot."""

import heapq
import itertools

from engine_parts import make_message

from quire.cli.bench.cluster.router_views import EventDelivery, Knowledge, RouterViews
from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_replica import VirtualReplica
from quire.cli.bench.null_engine import EngineParts

PARTS = EngineParts.load()


class OneReplica:
    """A replica, a router's knowledge of it, and the time between them."""

    def __init__(self, delay_s=1.0, loss=0.0):
        knowledge = Knowledge(1, True, delay_s, loss)
        (self.view,) = RouterViews(knowledge).views
        self.calls, self.order, self.now_s = [], itertools.count(), 0.0
        self.delivery = EventDelivery(self.view, knowledge, self.later, lambda _: self.engine, "0")
        self.start()
        self.num_requests = 0

    def start(self):
        self.engine = VirtualReplica(PARTS, 8, StepTime(), reports_events=True)
        self.view.start(0, 8)

    def later(self, after_s, call):
        heapq.heappush(self.calls, (self.now_s + after_s, next(self.order), call))

    def pass_time(self, seconds):
        end_s = self.now_s + seconds
        while self.calls and self.calls[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self.calls)
            call()
        self.now_s = end_s

    def compute(self, first, num_blocks=2):
        self.num_requests += 1
        self.engine.add(make_message(f"{self.num_requests}", [first] * (16 * num_blocks + 1), 1))
        while self.engine.core.has_work():
            for batch in self.engine.step()[1].kv_events:
                self.delivery.send(batch, 0.1)

    @property
    def is_right(self):
        held = [hash_ for _, hash_ in self.engine.core.scheduler.kv.pool._content.values()]
        holders = self.view._holders
        return len(holders) == len(set(held)) and all(0 in holders.of(block) for block in held)


def test_changes_arrive_after_their_delay():
    one = OneReplica()
    one.compute(1)
    one.pass_time(1.0)
    assert len(one.view._holders) == 0
    one.pass_time(0.2)
    assert one.is_right


def test_without_delay_they_are_known_with_their_step():
    one = OneReplica(delay_s=0.0)
    for first in range(10):
        one.compute(first)
        assert one.is_right


def test_after_losses_a_snapshot_makes_it_right_again():
    one = OneReplica(loss=0.4)
    was_wrong = 0
    for first in range(60):
        one.compute(first)
        one.pass_time(1.2)
        was_wrong += not one.is_right
    assert was_wrong > 5
    one.delivery._knowledge = Knowledge(1, True, 1.0, 0.0)
    one.compute(100)
    one.compute(101)
    one.pass_time(10.0)
    assert one.is_right


def test_changes_of_a_dead_replica_are_not_taken_for_those_of_the_next():
    one = OneReplica()
    one.compute(1)
    one.start()
    one.pass_time(2.0)
    assert len(one.view._holders) == 0
    one.compute(2)
    one.pass_time(2.0)
    assert one.is_right


def test_a_router_that_starts_anew_asks_what_is_cached():
    one = OneReplica()
    one.compute(1)
    one.pass_time(2.0)
    one.delivery.restart([0])
    assert len(one.view._holders) == 0
    one.compute(2)
    one.pass_time(10.0)
    assert one.is_right
