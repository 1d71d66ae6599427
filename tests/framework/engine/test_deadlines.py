import msgspec
import pytest
from engine_parts import make_core, make_message, run_to_end

from quire.engine.deadlines import Deadlines, report_of
from quire.engine.request import Request, Status


def due(name, arrival_s, timeout_s=None):
    message = make_message(name)
    return Request(msgspec.structs.replace(message, arrival_s=arrival_s, timeout_s=timeout_s), 1)


@pytest.mark.parametrize(
    ("default_s", "timeout_s", "limit_s"), [(None, 5.0, 5.0), (3.0, None, 3.0), (3.0, 5.0, 3.0)]
)
def test_the_shorter_limit_counts(default_s, timeout_s, limit_s):
    deadlines, request = Deadlines(default_s), due("a", 100.0, timeout_s)
    deadlines.add(request)
    assert deadlines.late(100.0 + limit_s - 0.01) == []
    assert deadlines.late(100.0 + limit_s) == [request]
    assert deadlines.late(1e9) == [], "a request is late once"


def test_without_a_limit_nobody_is_late():
    deadlines = Deadlines(None)
    deadlines.add(due("a", 0.0))
    assert deadlines.late(1e9) == []


def test_the_next_deadline_goes_first_and_who_is_over_is_left_out():
    deadlines = Deadlines(None)
    last, over, first = (due(n, 0.0, t) for n, t in (("c", 9.0), ("b", 5.0), ("a", 1.0)))
    for request in (last, over, first):
        deadlines.add(request)
    over.status = Status.FINISHED
    assert deadlines.late(10.0) == [first, last]


def test_the_report_says_how_long_and_how_far():
    report = report_of(due("a", 10.0, 2.0), 12.5)
    assert report.code == "request_timeout"
    assert "2.5 s after its arrival; it had 0 of at most 4 tokens" in report.message
    assert "timeout_s" in report.message


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_late_request_fails_and_leaves_nothing_behind(is_ahead):
    core, _, _ = make_core(is_ahead=is_ahead)
    message = make_message("late", max_tokens=50)
    core.add(msgspec.structs.replace(message, arrival_s=-1e6, timeout_s=1.0))
    core.add(make_message("other", prompt=[20]))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert outputs["late"].error.code == "request_timeout"
    assert run_to_end(core).get("late") is None
    assert core.scheduler.kv.pool.num_used == 0
