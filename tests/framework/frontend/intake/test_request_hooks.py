"""Plugins are called for each request; one that fails on all of them is reported by name."""

import pytest

from quire.errors import InvalidRequestError, RequestError, RequestFailedError
from quire.frontend.failure_streak import MAX_FAILURES, MIN_FAILING_S, RETRY_AFTER_S
from quire.frontend.intake.request_hooks import WatchedHook
from quire.messages import EngineRequest
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

ACME, OTHER = Source("acme", "acme-quire", "1.0"), Source("other", "other", "2.0")
REQUEST = EngineRequest(
    request_id="r", token_ids=[1], params=SamplingParams(), max_tokens=4, seed=0
)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class Moody:
    """A hook that raises a given error."""

    def __init__(self):
        self.error = RuntimeError("broken")

    def __call__(self, *, request):
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def moody():
    return Moody()


@pytest.fixture
def hooks(clock, moody):
    return watched(clock, (ACME, moody), (OTHER, lambda *, request: None))


def watched(clock, *hooks):
    return [WatchedHook(source, call, clock) for source, call in hooks]


def receive(hooks):
    """Receive a request, as the intake does."""
    for hook in hooks:
        hook.received(REQUEST)


def fail(hooks, times):
    for _ in range(times):
        with pytest.raises(RequestFailedError, match=r"plugin acme \(acme-quire 1.0\) failed"):
            receive(hooks)


def fail_for_long(hooks, clock, times=MAX_FAILURES):
    """Let requests fail, the last of them as late as makes a plugin failing."""
    fail(hooks, times - 1)
    clock.now_s += MIN_FAILING_S
    fail(hooks, 1)


def failing(hooks):
    return [(each.source, each.num_failures) for each in hooks if each.is_failing]


def test_a_plugin_is_failing_after_some_failures_in_a_row_and_no_other_is(hooks, clock):
    fail(hooks, MAX_FAILURES - 2)
    clock.now_s += MIN_FAILING_S
    fail(hooks, 1)
    assert failing(hooks) == []
    fail(hooks, 1)
    assert failing(hooks) == [(ACME, MAX_FAILURES)]
    fail(hooks, 2)
    assert failing(hooks) == [(ACME, MAX_FAILURES + 2)]


def test_many_failures_within_a_short_time_are_not_enough(hooks, clock, caplog):
    fail(hooks, 10 * MAX_FAILURES)
    clock.now_s += MIN_FAILING_S - 1
    fail(hooks, 1)
    assert failing(hooks) == []
    assert "on all of the last" not in caplog.text
    clock.now_s += 1
    assert failing(hooks) == [], "no request has failed so late"
    fail(hooks, 1)
    assert failing(hooks) == [(ACME, 10 * MAX_FAILURES + 2)]


def test_requests_that_pass_keep_a_plugin_well_whatever_fails_between_them(hooks, clock, moody):
    for _ in range(5):
        moody.error = RuntimeError("this one only")
        fail(hooks, MAX_FAILURES)
        clock.now_s += MIN_FAILING_S - 1
        moody.error = None
        receive(hooks)
        assert failing(hooks) == []


def test_one_request_that_passes_ends_it(hooks, clock, moody):
    fail_for_long(hooks, clock)
    moody.error = None
    receive(hooks)
    assert failing(hooks) == []
    moody.error = RuntimeError("again")
    clock.now_s += MIN_FAILING_S
    fail(hooks, MAX_FAILURES)
    assert failing(hooks) == [], "counted and timed anew"


def test_a_refusal_shows_that_the_plugin_works(hooks, clock, moody):
    fail_for_long(hooks, clock)
    moody.error = InvalidRequestError("not on Sundays", param="prompt")
    with pytest.raises(RequestError, match="not on Sundays"):
        receive(hooks)
    assert failing(hooks) == []


def test_without_requests_a_plugin_counts_as_well_after_a_while_until_it_fails_again(hooks, clock):
    fail_for_long(hooks, clock)
    clock.now_s += RETRY_AFTER_S - 1
    assert failing(hooks) == [(ACME, MAX_FAILURES)]
    clock.now_s += 2
    assert failing(hooks) == []
    fail(hooks, 1)
    assert failing(hooks) == [(ACME, MAX_FAILURES + 1)]
    clock.now_s += RETRY_AFTER_S - 1
    assert len(failing(hooks)) == 1, "counted from the last failure"


def test_the_log_says_once_that_a_plugin_keeps_failing_and_once_that_it_is_well(
    hooks, clock, moody, caplog
):
    fail_for_long(hooks, clock)
    fail(hooks, 3)
    moody.error = None
    receive(hooks)
    receive(hooks)
    (logged,) = [line for line in caplog.messages if "on all of the last " in line]
    assert "plugin acme (acme-quire 1.0) failed in request_received" in logged
    assert "on all of the last 5 requests, for 10 s" in logged
    assert "readyz" not in logged, "an LLM has no server"
    assert "-p no:acme" in logged
    (well,) = [line for line in caplog.messages if "works again" in line]
    assert "plugin acme (acme-quire 1.0) works again, after 8 failures" in well
    traces = [record for record in caplog.records if record.exc_info is not None]
    assert len(traces) == MAX_FAILURES + 3


def test_failures_of_a_short_time_are_not_worth_a_word_when_they_end(hooks, moody, caplog):
    fail(hooks, MAX_FAILURES)
    moody.error = None
    receive(hooks)
    assert "works again" not in caplog.text


def test_a_plugin_behind_one_that_fails_is_not_called(clock, moody):
    seen = []
    behind = (OTHER, lambda *, request: seen.append(request))
    hooks = watched(clock, (ACME, moody), behind)
    fail(hooks, 1)
    assert seen == []
    moody.error = None
    receive(hooks)
    assert seen == [REQUEST]


def test_reading_an_unknown_attribute_lists_the_known_ones(clock, caplog):
    hooks = watched(clock, (ACME, lambda *, request: request.prompt_token_ids))
    fail(hooks, 1)
    (line,) = caplog.messages
    assert "EngineRequest has no 'prompt_token_ids'; did you mean 'token_ids'?" in line
    assert "(it has request_id, token_ids, params, max_tokens, seed, child," in line
    assert "docs/hooks.md" in line


def test_an_attribute_that_something_else_lacks_is_no_matter_of_the_requests(clock, caplog):
    hooks = watched(clock, (ACME, lambda *, request: request.params.token_ids))
    fail(hooks, 1)
    assert caplog.messages == ["plugin acme (acme-quire 1.0) failed in request_received"]


def test_an_attribute_that_resembles_none_is_reported_without_a_guess(clock, caplog):
    hooks = watched(clock, (ACME, lambda *, request: request.headers))
    fail(hooks, 1)
    assert "EngineRequest has no 'headers' (it has request_id" in caplog.messages[0]
