"""Many refusals are few lines in the log."""

from types import SimpleNamespace

import pytest

from quire.server.http import refusals as module
from quire.server.http.refusals import REPORT_INTERVAL_S, Refusals


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now_s)
    return made


def test_refusals_of_a_kind_are_one_line_for_an_interval(clock, caplog):
    refusals = Refusals()
    for _ in range(1000):
        refusals.note("crowded", "too many: closed {num}")
    clock.now_s += REPORT_INTERVAL_S
    refusals.note("crowded", "too many: closed {num}")
    assert [record.getMessage() for record in caplog.records] == [
        "too many: closed 1",
        "too many: closed 1000",
    ]


def test_each_kind_has_its_own_interval(clock, caplog):
    refusals = Refusals()
    for kind in ("crowded", "protocol", "crowded", "protocol"):
        refusals.note(kind, f"{kind}: {{num}}")
    assert [record.getMessage() for record in caplog.records] == ["crowded: 1", "protocol: 1"]


def test_a_line_may_have_braces(caplog):
    Refusals().note(
        "protocol",
        "requests that were no valid HTTP: {num}, the last one with: invalid token '{0}' {",
    )
    assert caplog.messages == [
        "requests that were no valid HTTP: 1, the last one with: invalid token '{0}' {"
    ]


def test_all_refusals_are_counted_also_those_without_a_line():
    refusals = Refusals()
    for kind in ("crowded", "protocol", "crowded"):
        refusals.note(kind, "{num}")
    assert {kind: num for kind, num in refusals.totals.items() if num} == {
        "crowded": 2,
        "protocol": 1,
    }
