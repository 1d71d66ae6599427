import gc
import math
import time
import weakref
from itertools import pairwise

import msgspec
import pytest
from engine_parts import make_core, make_message, run_to_end

from quire.engine.deadlines import MIN_ENTRIES, Deadlines, timeout_report
from quire.engine.request import Request, Status


def due(name, arrival_s, timeout_s=None, max_timeout_s=None):
    message = msgspec.structs.replace(make_message(name), arrival_s=arrival_s, timeout_s=timeout_s)
    return Request(message, 1, max_timeout_s)


@pytest.mark.parametrize(
    ("max_s", "timeout_s", "limit_s"), [(None, 5.0, 5.0), (3.0, None, 3.0), (3.0, 5.0, 3.0)]
)
def test_the_shorter_limit_counts(max_s, timeout_s, limit_s):
    deadlines, request = Deadlines(), due("a", 100.0, timeout_s, max_s)
    deadlines.add(request)
    assert deadlines.pop_expired(100.0 + limit_s - 0.01) == []
    assert deadlines.pop_expired(100.0 + limit_s) == [request]
    assert deadlines.pop_expired(1e9) == [], "a request is late once"


def test_without_a_limit_no_deadline_is_recorded():
    core, _, _ = make_core()
    core.add(make_message("a"))
    assert core.scheduler.requests["a"].deadline_s == math.inf
    assert len(core.scheduler._deadlines) == 0


def test_the_earliest_deadline_is_known_without_a_look_at_the_requests():
    deadlines = Deadlines()
    assert deadlines.next_s == math.inf
    requests = [due("b", 0.0, 9.0), due("a", 0.0, 5.0), due("c", 0.0, 20.0)]
    for request, next_s in zip(requests, (9.0, 5.0, 5.0), strict=True):
        deadlines.add(request)
        assert deadlines.next_s == next_s
    for now_s, next_s in ((4.9, 5.0), (9.0, 20.0), (20.0, math.inf)):
        deadlines.pop_expired(now_s)
        assert deadlines.next_s == next_s


def test_the_next_deadline_goes_first_and_finished_requests_are_left_out():
    deadlines = Deadlines()
    last, over, first = (due(n, 0.0, t) for n, t in (("c", 9.0), ("b", 5.0), ("a", 1.0)))
    for request in (last, over, first):
        deadlines.add(request)
    over.status = Status.FINISHED
    assert deadlines.pop_expired(10.0) == [first, last]


@pytest.mark.parametrize(
    ("own_s", "engine_s", "limit"),
    [
        (0.05, None, "its timeout_s is 0.05 s"),
        (0.05, 0.05, "its timeout_s is 0.05 s"),
        (1000, 0.05, "this engine's request_timeout_s is 0.05 s"),
        (None, 0.05, "this engine's request_timeout_s is 0.05 s"),
    ],
)
def test_the_report_contains_the_age_the_progress_and_the_limit(own_s, engine_s, limit):
    report = timeout_report(due("a", 10.0, own_s), 10.0521, engine_s)
    assert report.code == "request_timeout"
    assert f"not finished 0.0521 s after its arrival, and {limit}; it had 0 of at" in report.message
    assert ("Start the engine" in report.message) == ("engine" in limit)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_late_request_fails_and_leaves_nothing_behind(async_scheduling):
    core, _, _ = make_core(async_scheduling=async_scheduling)
    message = make_message("late", max_tokens=50)
    core.add(msgspec.structs.replace(message, arrival_s=-1e6, timeout_s=1.0))
    core.add(make_message("other", prompt=[20]))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert outputs["late"].error.code == "request_timeout"
    assert run_to_end(core).get("late") is None
    assert core.scheduler.kv.pool.num_used == 0


def test_a_finished_request_is_not_kept_until_its_deadline():
    deadlines, request = Deadlines(), due("a", 0.0, 3600.0)
    deadlines.add(request)
    seen = weakref.ref(request)
    request.status = Status.FINISHED
    del request
    gc.collect()
    assert seen() is None
    assert deadlines.pop_expired(1e9) == []


def test_notes_are_no_more_than_a_multiple_of_those_that_are_not_over():
    deadlines, alive = Deadlines(), [due(f"r{i}", float(i), 3600.0) for i in range(100)]
    for request in alive:
        deadlines.add(request)
    lengths = []
    for index in range(1000):
        over = due(f"o{index}", 0.0, 3600.0)
        deadlines.add(over)
        over.status = Status.FINISHED
        assert len(deadlines) <= 2 * len(alive) + MIN_ENTRIES
        lengths.append(len(deadlines))
    num_looks = sum(after < before for before, after in pairwise(lengths))
    assert num_looks < 20, "of a thousand that came, few looked at all"
    assert max(lengths) > 1.9 * len(alive), "and none before the notes had nearly doubled"
    assert deadlines.pop_expired(1e9) == alive, "and none of those is lost"


def test_an_engine_with_a_timeout_keeps_nothing_of_those_that_are_over():
    core, _, _ = make_core(request_timeout_s=3600.0)
    seen = []
    for index in range(3):
        message = make_message(f"r{index}")
        core.add(msgspec.structs.replace(message, arrival_s=time.monotonic()))
        seen.append(weakref.ref(core.scheduler.requests[f"r{index}"]))
        run_to_end(core)
    gc.collect()
    assert [request() for request in seen] == [None, None, None]
