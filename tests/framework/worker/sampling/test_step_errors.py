"""Errors of steps name the step, and show a client no message that may hold its internals."""

from quire.errors import RequestFailedError
from quire.worker.sampling.step_errors import step_error


def test_only_the_type_of_a_foreign_error_is_shown():
    assert str(step_error("sampler x", ValueError("secret"))) == "sampler x failed: ValueError"


def test_the_message_of_a_failed_request_is_kept():
    error = step_error("sampler x", RequestFailedError("it returned None"))
    assert str(error) == "sampler x failed: it returned None"
