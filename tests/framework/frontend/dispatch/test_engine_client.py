"""Engine outputs and errors; a core behind channels and a scripted one behave the same."""

import pytest
from engine_parts import make_core, make_message, run_to_end
from scripted_core import Reply, ScriptedCore, counting
from served_core import serve_core
from served_replicas import ReplicaTrial

import quire.errors
from quire.errors import (
    AdapterError,
    CapacityError,
    GrammarError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    QuireError,
    RefusedError,
    RequestError,
    RequestFailedError,
)
from quire.frontend.dispatch.engine_client import error_of
from quire.messages import ErrorReport, ResetPrefixCache
from quire.server.wire.http_errors import status_of

CURSED = 50


def real(max_num_seqs=64, max_num_queued=4096, num_blocks=100):
    return make_core(
        num_blocks, fail_on=CURSED, max_num_seqs=max_num_seqs, max_num_queued=max_num_queued
    )[0]


def scripted(max_num_seqs=64, max_num_queued=4096, num_blocks=100):
    def script(request):
        reply = counting(request)
        if request.token_ids[-1] == CURSED:
            return Reply([], ErrorReport("request_failed", "token is cursed"))
        return reply

    return ScriptedCore(
        script,
        max_num_seqs=max_num_seqs,
        max_queued=max_num_queued,
        max_request_tokens=4 * (num_blocks - 1),
    )


def replicated():
    """Yield a function that makes a core of one replica, whose limits are those of all."""
    trials = []

    def make(**options):
        trials.append(ReplicaTrial(1, make_engine=lambda: real(**options)))
        trials[-1].core.start()
        return trials[-1].core

    yield make
    for trial in trials:
        trial.close()


@pytest.fixture(params=["real", "remote", "replicated", "scripted"])
def make(request, tmp_path_factory):
    if request.param in ("real", "scripted"):
        yield real if request.param == "real" else scripted
        return
    if request.param == "replicated":
        yield from replicated()
        return
    started = []

    def remote(**options):
        started.append(serve_core(real(**options), tmp_path_factory.mktemp("s")))
        return started[-1][0]

    yield remote
    for core, thread in started:
        core.shutdown()
        thread.join()


def finish(core, max_steps=100):
    """Step until nothing is left; the last output of each request."""
    last = {}
    for _ in range(max_steps):
        if not core.has_work():
            return last
        last |= {output.request_id: output for output in core.step().outputs}
    raise AssertionError("still busy")


ERRORS = [
    error
    for error in vars(quire.errors).values()
    if isinstance(error, type) and issubclass(error, QuireError)
]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_is_raised_in_the_engine_is_the_same_error_outside(error):
    received = error_of(ErrorReport(error.code, "it cannot be"))
    assert str(received) == "it cannot be"
    if issubclass(error, RequestError):
        assert received.code == error.code
    elif error not in (CapacityError, AdapterError):
        assert type(received) is RequestFailedError


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (CapacityError, PromptTooLongError, 400),
        (AdapterError, InvalidRequestError, 400),
        (GrammarError, GrammarError, 400),
        (OverloadedError, OverloadedError, 503),
        (RefusedError, RequestFailedError, 500),
        (RequestFailedError, RequestFailedError, 500),
    ],
)
def test_what_the_client_can_do_about_it_is_its_own_error(error, kind, status):
    received = error_of(ErrorReport(error.code, "it cannot be"))
    assert type(received) is kind
    assert status_of(received) == status


def test_an_unknown_code_is_a_failure():
    assert type(error_of(ErrorReport("made_up", "x"))) is RequestFailedError


def test_tokens_come_one_a_step_until_max_tokens(make):
    core = make()
    core.add(make_message("a", max_tokens=3))
    steps = [core.step().outputs for _ in range(3)]
    assert [output.token_ids for (output,) in steps] == [[13], [14], [15]]
    assert [output.finish_reason for (output,) in steps] == [None, None, "length"]
    assert not core.has_work()


def test_a_stop_token_of_the_request_ends_it_and_is_the_reason(make):
    core = make()
    core.add(make_message("a", max_tokens=9, stop_token_ids=(14,)))
    last = finish(core)["a"]
    assert (last.token_ids, last.finish_reason, last.stop_reason) == ([14], "stop", 14)


def test_a_stop_token_before_min_tokens_does_not_end_it(make):
    core = make()
    core.add(make_message("a", max_tokens=3, min_tokens=2, stop_token_ids=(14,)))
    assert finish(core)["a"].finish_reason == "length"


def test_a_full_queue_is_an_output_of_the_next_step(make):
    core = make(max_num_seqs=1, max_num_queued=2)
    for name in "abcd":
        core.add(make_message(name, max_tokens=1))
    refused = [output for output in core.step().outputs if output.error]
    assert [output.request_id for output in refused] == ["d"]
    assert all(output.finish_reason == "error" and not output.token_ids for output in refused)
    assert {output.error.code for output in refused} == {"overloaded"}
    core.add(make_message("e", max_tokens=1))  # there is room again
    assert run_to_end(core) == {"b": [13], "c": [13], "e": [13]}


def test_a_request_that_can_never_fit_is_an_output_of_the_next_step(make):
    core = make(num_blocks=4)
    core.add(make_message("a", max_tokens=50))
    assert core.has_work()
    (output,) = core.step().outputs
    assert (output.finish_reason, output.error.code) == ("error", "out_of_capacity")
    assert not core.has_work()


def test_what_runs_does_not_wait_and_what_waits_runs_later(make):
    core = make(max_num_seqs=2)
    for name in "abc":
        core.add(make_message(name, max_tokens=2))
    outputs = core.step()
    assert [output.request_id for output in outputs.outputs] == ["a", "b"]
    assert (outputs.stats.num_running, outputs.stats.num_waiting) == (2, 1)
    assert run_to_end(core) == {"a": [14], "b": [14], "c": [13, 14]}


def test_an_aborted_request_is_not_heard_of_again(make):
    core = make(max_num_seqs=1)
    core.add(make_message("a"))
    core.add(make_message("b"))
    core.step()
    core.abort(["a", "b", "unknown"])
    core.abort(["a"])
    assert not core.has_work()
    assert core.step().outputs == []


def test_a_request_that_fails_takes_no_other_with_it(make):
    core = make()
    core.add(make_message("a", prompt=[CURSED]))
    core.add(make_message("b", max_tokens=2))
    last = finish(core)
    assert (last["a"].finish_reason, last["a"].error.code) == ("error", "request_failed")
    assert (last["b"].finish_reason, last["b"].error) == ("length", None)


def test_controls_return_and_shutdown_may_come_twice(make):
    core = make()
    assert core.control(ResetPrefixCache()) is None
    core.shutdown()
    core.shutdown()


def test_an_idle_engine_is_healthy_and_says_what_it_has(make):
    core = make()
    core.check_health()
    core.add(make_message("a", max_tokens=1))
    core.add(make_message("b", max_tokens=1))
    assert (core.stats().num_running + core.stats().num_waiting) in (0, 2)  # none if it stepped on
    finish(core)
    assert (core.stats().num_running, core.stats().num_waiting) == (0, 0)
