"""A single worker tries each request alone; one of several reports what failed."""

import pytest
import torch

from quire.errors import CollectiveError, EngineDeadError, RequestFailedError, StepFailedError
from quire.worker.batch.step_results import failure
from quire.worker.failures import BatchWork, IsolateAlone, ReportFailures

BAD = 3


def work(run):
    return BatchWork("adding", run, lambda batch: batch, lambda batch: ([each] for each in batch))


def add(batch):
    if BAD in batch:
        raise ZeroDivisionError("secret")
    return sum(batch)


def raise_(error):
    raise error


def test_a_batch_that_works_is_done_at_once():
    for policy in (IsolateAlone(), ReportFailures()):
        errors = {}
        assert policy.run(work(add), [1, 2, 4], errors) == [7]
        assert errors == {}


def test_alone_a_failure_costs_one_request(caplog):
    errors = {}
    assert IsolateAlone().run(work(add), [1, BAD, 4], errors) == [1, 4]
    assert list(errors) == [BAD]
    assert errors[BAD].message == "adding failed: ZeroDivisionError"
    assert "secret" in errors[BAD].cause
    assert "adding failed for 3 request(s)" in caplog.text


def test_among_others_a_failure_is_the_whole_steps():
    calls = []
    with pytest.raises(StepFailedError, match="adding failed: ZeroDivisionError") as raised:
        ReportFailures().run(work(lambda batch: calls.append(batch) or add(batch)), [1, BAD, 4], {})
    assert calls == [[1, BAD, 4]], "nothing is tried again"
    assert raised.value.slots == {}
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_among_others_a_request_that_fails_alone_is_named():
    with pytest.raises(StepFailedError) as raised:
        ReportFailures().run(work(add), [BAD], {})
    assert raised.value.slots == {BAD: raised.value.report}


def test_an_error_of_ours_keeps_its_words_and_code():
    with pytest.raises(StepFailedError, match="so it is") as raised:
        ReportFailures().run(work(lambda _: raise_(RequestFailedError("so it is"))), [1, 2], {})
    assert raised.value.report.code == "request_failed"


def test_what_another_rank_failed_at_is_not_reported_as_ones_own():
    with pytest.raises(CollectiveError, match="rank 2"):
        ReportFailures().run(work(lambda _: raise_(CollectiveError("rank 2"))), [1, 2], {})


@pytest.mark.parametrize("policy", [IsolateAlone(), ReportFailures()])
def test_a_device_that_failed_ends_the_engine(policy):
    fault = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    for call in (
        lambda: policy.run(work(lambda _: raise_(fault)), [1, 2], {}),
        lambda: policy.attempt("a captured step", [1], lambda: raise_(fault)),
    ):
        with pytest.raises(EngineDeadError, match="an illegal memory access"):
            call()


def test_alone_a_slower_way_is_taken(caplog):
    policy = IsolateAlone()
    assert policy.attempt("a captured step", [1, 2], lambda: 5) == 5
    assert policy.attempt("a captured step", [1, 2], lambda: add([BAD])) is None
    assert "a captured step of 2 request(s) failed; it is computed eagerly" in caplog.text


def test_among_others_no_rank_takes_a_slower_way():
    policy = ReportFailures()
    assert policy.attempt("a captured step", [1, 2], lambda: 5) == 5
    with pytest.raises(StepFailedError, match="a captured step failed: ZeroDivisionError"):
        policy.attempt("a captured step", [1, 2], lambda: add([BAD]))


def test_alone_requests_are_left_out_and_among_others_they_end_the_step():
    errors = {slot: failure("reading", KeyError("a field")) for slot in (4, 2)}
    IsolateAlone().exclude(errors)
    ReportFailures().exclude({})
    with pytest.raises(StepFailedError, match="reading failed: KeyError") as raised:
        ReportFailures().exclude(errors)
    assert raised.value.slots == errors
