"""The work of all front ends, as one of them knows it between two reports of the engine."""

import pytest
from engine_parts import make_message

from quire.errors import OverloadedError
from quire.frontend.dispatch.queue_gate import QueueLimits
from quire.frontend.dispatch.shared_backlog import SharedBacklog
from quire.messages import EngineOutputs, EngineStats, SharedLoad


class Clock:
    """A clock that the test sets."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def backlog(clock, max_running=2, max_queued=3, max_wait_s=None):
    return SharedBacklog(QueueLimits(max_running, max_queued, max_wait_s), clock)


def report(made, num_running=0, **load):
    made.take(EngineOutputs([], EngineStats(num_running=num_running), load=SharedLoad(**load)), 0)


def test_requests_of_others_fill_the_queue(clock):
    made = backlog(clock)
    report(made, num_open=4)
    made.check_queue()
    made.add([make_message("a")])
    with pytest.raises(OverloadedError, match="3 requests are queued"):
        made.check_queue()


def test_a_request_counts_once_when_the_engine_has_taken_it(clock):
    made = backlog(clock)
    made.add([make_message("a")])
    clock.now_s = 101.0
    made.add([make_message("b")])
    report(made, num_open=1, taken_s=100.5)
    assert len(made) == 2
    report(made, num_open=2, taken_s=101.0)
    assert len(made) == 2


def test_one_that_is_aborted_on_the_way_does_not_count(clock):
    made = backlog(clock)
    made.add([make_message("a"), make_message("b")])
    made.remove(["a", "other"])
    assert len(made) == 1


def test_the_wait_is_the_work_of_all_by_the_rate_of_the_engine(clock):
    made = backlog(clock, max_queued=100)
    assert made.wait_s == 0.0
    load = {"num_open": 5, "num_waiting": 3, "work_tokens": 300.0, "tokens_per_s": 100.0}
    report(made, num_running=2, taken_s=100.0, completion_tokens=10.0, token_s=0.02, **load)
    assert made.wait_s == 3.0
    clock.now_s = 100.1
    made.add([make_message("a", prompt=range(40), max_tokens=60)])
    assert made.wait_s == pytest.approx((300 + 40 + 10) / 100)
    with pytest.raises(OverloadedError, match=r"3\.5 s long, a completion takes about 0\.2 s"):
        made.check_room(4.6, 10)


def test_nothing_waits_while_there_are_free_slots(clock):
    made = backlog(clock)
    report(made, num_open=1, work_tokens=50.0, tokens_per_s=1.0)
    made.add([make_message("a")])
    assert made.num_waiting == 0
    assert made.wait_s == 0.0
    made.add([make_message("b")])
    assert made.num_waiting == 1
    assert made.wait_s > 50.0


def test_an_estimate_that_was_not_measured_refuses_nothing(clock):
    made = backlog(clock, max_wait_s=1.0)
    report(made, num_open=4, num_waiting=2, work_tokens=1e9)
    made.check_room(0.1, 100)
