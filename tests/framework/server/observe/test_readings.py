"""Readings of several replicas keep them apart, and an idle engine shows no load."""

import pytest

from quire.frontend.dispatch.watched_steps import WatchedSteps
from quire.frontend.failure_streak import MAX_FAILURES, MIN_FAILING_S, RETRY_AFTER_S
from quire.messages import EngineOutput, EngineStats, ErrorReport, ReplicaStats
from quire.server.http.lifecycle import Lifecycle
from quire.server.observe.quire_metrics import QUIRE_METRICS, kv_usage
from quire.server.observe.readings import Readings


@pytest.fixture
def readings(frontend):
    frontend.dispatch.stats = EngineStats()
    yield Readings(frontend, Lifecycle())
    frontend.dispatch.stats = EngineStats()


def samples(readings, name):
    (metric,) = [metric for metric in QUIRE_METRICS if metric.name == name]
    return {tuple(s.labels.values()): s.value for s in metric.family(readings).samples}


def test_each_replica_has_a_label(readings, frontend):
    frontend.dispatch.stats = EngineStats(
        num_running=4,
        replicas=[
            ReplicaStats(True, 3, 2, num_blocks=10, num_used_blocks=5, num_preemptions=7),
            ReplicaStats(False),
            ReplicaStats(True, 1, 0, num_blocks=10, num_prefix_queries=9, num_prefix_hits=3),
        ],
    )
    assert samples(readings, "quire_requests_running") == {("0",): 3, ("1",): 0, ("2",): 1}
    assert samples(readings, "quire_requests_waiting") == {("0",): 2, ("1",): 0, ("2",): 0}
    assert samples(readings, "quire_engine_up") == {("0",): 1, ("1",): 0, ("2",): 1}
    assert samples(readings, "quire_kv_usage_ratio") == {("0",): 0.5, ("1",): 0, ("2",): 0}
    assert samples(readings, "quire_preemptions_total") == {("0",): 7, ("1",): 0, ("2",): 0}
    assert samples(readings, "quire_prefix_cache_hits_total")["2",] == 3
    assert samples(readings, "quire_prefix_cache_queries_total")["2",] == 9


def test_an_abort_between_two_steps_leaves_no_load(readings, frontend):
    frontend.dispatch.stats = EngineStats(
        num_running=1, num_waiting=1, num_used_blocks=3, num_blocks=9
    )
    (engine,) = readings.engines()
    assert (engine.gauges.num_running, engine.gauges.num_waiting) == (0, 0)
    assert kv_usage(engine.gauges) == 0


def test_the_state_of_a_server_that_drains_is_draining(readings):
    assert readings.engine_state == "ready"
    readings.lifecycle.drain()
    assert readings.engine_state == "draining"


def test_the_state_of_an_engine_whose_requests_all_fail_is_failing(readings, frontend, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(frontend.dispatch, "watched_steps", WatchedSteps(lambda: now_s[0]))
    failed = EngineOutput(
        request_id="r",
        token_ids=[],
        finish_reason="error",
        error=ErrorReport("request_failed", "bad", ""),
    )
    for now_s[0] in (0.0, MIN_FAILING_S, *[MIN_FAILING_S] * MAX_FAILURES):
        frontend.dispatch.watched_steps.record([failed])
    assert readings.engine_state == "failing"
    now_s[0] += RETRY_AFTER_S + 1
    assert readings.engine_state == "ready"


def test_connections_that_were_refused_are_counted_by_kind(readings):
    readings.lifecycle.num_refused = lambda: {"crowded": 3, "protocol": 0}
    assert samples(readings, "quire_http_refused_connections_total") == {
        ("crowded",): 3,
        ("protocol",): 0,
    }


def test_grammars_are_a_count_and_a_sum(readings, frontend):
    frontend.dispatch.stats = EngineStats(
        num_grammars_waiting=2, num_grammars_compiled=5, grammar_wait_s=1.5
    )
    metric = next(m for m in QUIRE_METRICS if m.name == "quire_grammar_wait_seconds")
    found = {s.name: s.value for s in metric.family(readings).samples}
    assert found == {"quire_grammar_wait_seconds_count": 5, "quire_grammar_wait_seconds_sum": 1.5}
