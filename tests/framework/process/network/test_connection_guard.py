"""Reports of disconnections: soon, not often, and once more later; and who is admitted."""

from itertools import pairwise

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from processes import eventually
from zmq.utils import z85

from quire.process.launch_key import LaunchKey
from quire.process.network import connection_guard
from quire.process.network.connection_guard import (
    MIN_REPORT_INTERVAL_S,
    REPEAT_S,
    ConnectionGuard,
    ReportTimes,
    _answer,
)
from quire.process.network.half_open import HalfOpenConnections

KEY = z85.decode(LaunchKey.new().joiner.public)


def reports(disconnections, until):
    """Return the times of the reports, asking every 5 ms; the guard asks when one is due."""
    times, due = ReportTimes(), []
    now = 0.0
    left = sorted(disconnections)
    while now < until:
        while left and left[0] <= now:
            times.plan(now)
            left.pop(0)
        if times.is_due(now):
            due.append(now)
        timeout_ms = times.timeout_ms(now)
        assert timeout_ms is None or timeout_ms >= 0
        now = round(now + 0.005, 3)
    assert timeout_ms is None
    return due


def test_a_disconnection_is_reported_at_once_and_once_more():
    assert reports([2.0], 5.0) == [2.0, 2.0 + REPEAT_S]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40))
def test_each_disconnection_is_reported_soon_and_later_and_never_too_often(moments):
    disconnections = [number / 200 for number in moments]
    due = reports(disconnections, 4.0)
    for time in disconnections:
        assert any(time <= report <= time + MIN_REPORT_INTERVAL_S + 0.006 for report in due)
        assert any(time + REPEAT_S - 0.006 <= report for report in due)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert all(gap >= MIN_REPORT_INTERVAL_S - 1e-6 for gap in gaps)


def test_without_a_disconnection_nothing_is_due():
    times = ReportTimes()
    assert times.timeout_ms(5.0) is None
    assert not times.is_due(5.0)


def test_the_wait_ends_when_a_report_is_due():
    times = ReportTimes()
    times.plan(1.0)
    assert times.timeout_ms(1.0) == 0
    assert times.is_due(1.0)
    assert times.timeout_ms(1.0) == REPEAT_S * 1000
    assert not times.is_due(1.0 + REPEAT_S - 0.001)
    assert times.timeout_ms(50.0) == 0


def request(domain=b"quire", mechanism=b"CURVE", credentials=(KEY,)):
    return [b"1.0", b"7", domain, b"10.0.0.2", b"", mechanism, *credentials]


def test_the_joiner_of_the_launch_is_admitted():
    assert _answer(request(), KEY) == (b"1.0", b"7", b"200", b"OK", b"joiner", b"")


@pytest.mark.parametrize(
    "changed",
    [
        {"domain": b"other"},
        {"mechanism": b"NULL", "credentials": ()},
        {"mechanism": b"PLAIN", "credentials": (b"quire", KEY)},
        {"mechanism": b"GSSAPI"},
        {"credentials": (bytes(32),)},
        {"credentials": (KEY[:-1],)},
        {"credentials": (KEY, KEY)},
    ],
)
def test_any_other_is_refused(changed):
    version, request_id, status, *_ = _answer(request(**changed), KEY)
    assert (version, request_id, status) == (b"1.0", b"7", b"400")


def test_what_zeromq_does_not_close_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(connection_guard, "CLOSE_TIMEOUT_S", 0.1)
    context = zmq.Context()
    guarded, left_open = context.socket(zmq.ROUTER), context.socket(zmq.PAIR)
    guard = ConnectionGuard(context, guarded, LaunchKey.new(), HalfOpenConnections(1, 8))
    guarded.close(0)
    guard.close()
    assert "did not close within 0.1 s" in caplog.text
    left_open.close(0)
    eventually(lambda: not guard._thread.is_alive())
