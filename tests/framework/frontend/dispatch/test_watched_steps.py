"""Repeated failures of steps are found, and only those that say something about the engine."""

import pytest

from quire.frontend.dispatch.watched_steps import WatchedSteps
from quire.frontend.failure_streak import MAX_FAILURES, MIN_FAILING_S, RETRY_AFTER_S
from quire.messages import EngineOutput, ErrorReport

FAILED = ErrorReport("request_failed", "sampler 'x' of plugin acme failed: RuntimeError", "secret")


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def steps(clock):
    return WatchedSteps(clock)


def output(*token_ids, finish_reason=None, error=None):
    reason = "error" if error else finish_reason
    return EngineOutput(
        request_id="r", token_ids=list(token_ids), finish_reason=reason, error=error
    )


def fail(steps, times):
    for _ in range(times):
        steps.record([output(error=FAILED)])


def fail_for_long(steps, clock):
    fail(steps, MAX_FAILURES - 1)
    clock.now_s += MIN_FAILING_S
    fail(steps, 1)


def test_failures_that_last_make_steps_failing_with_the_cause(steps, clock, caplog):
    fail_for_long(steps, clock)
    assert steps.is_failing
    assert (steps.cause, steps.num_failures) == (FAILED.message, MAX_FAILURES)
    (line,) = caplog.messages
    assert "all of the last 5 requests failed, for 10 s" in line
    assert FAILED.message in line
    assert "secret" not in line


def test_failures_in_quick_succession_are_not_enough(steps, clock):
    fail(steps, 10 * MAX_FAILURES)
    clock.now_s += MIN_FAILING_S - 1
    fail(steps, 1)
    assert not steps.is_failing


@pytest.mark.parametrize("success", [output(5), output(finish_reason="stop")])
def test_a_step_with_a_token_or_an_end_is_a_success(steps, clock, success, caplog):
    fail_for_long(steps, clock)
    steps.record([success])
    assert not steps.is_failing
    assert steps.num_failures == 0
    assert caplog.messages[-1] == "steps succeed again, after 5 failed requests"


def test_a_step_in_which_another_request_got_a_token_is_no_failure(steps, clock):
    fail(steps, MAX_FAILURES - 1)
    clock.now_s += MIN_FAILING_S
    steps.record([output(error=FAILED), output(5)])
    assert steps.num_failures == 0


@pytest.mark.parametrize(
    "other",
    [
        output(),
        output(finish_reason="abort"),
        output(error=ErrorReport("invalid_grammar", "no such keyword")),
        output(error=ErrorReport("request_timeout", "too slow")),
        output(error=ErrorReport("overloaded", "full")),
    ],
)
def test_what_says_nothing_about_the_engine_changes_nothing(steps, clock, other):
    fail_for_long(steps, clock)
    steps.record([other])
    steps.record([])
    assert steps.is_failing
    assert steps.num_failures == MAX_FAILURES


def test_without_requests_the_steps_are_tried_again(steps, clock):
    fail_for_long(steps, clock)
    clock.now_s += RETRY_AFTER_S
    assert not steps.is_failing
    fail(steps, 1)
    assert steps.is_failing
