"""A failure has words for a client and its cause for the program; it holds no tensors."""

import weakref

import pytest
import torch

from quire.errors import AdapterError, RequestFailedError
from quire.worker.step_results import failure


class Thing:
    """What a frame holds."""


def raises(held):
    """Raise with something in the frame, and behind another exception."""
    try:
        raise KeyError("first")
    except KeyError as error:
        kept = (held, torch.ones(1))
        assert kept
        raise ValueError("secret") from error


def failed(wrap=None):
    """Return the failure of a call, and a reference to what its frames held."""
    held = Thing()
    reference = weakref.ref(held)
    try:
        try:
            raises(held)
        except ValueError as error:
            if wrap is None:
                raise
            raise wrap("of acme failed") from error
    except Exception as error:  # noqa: BLE001 - as at the edge of a plugin
        del held
        return failure("sampling", error), reference


def test_what_a_client_may_not_see_is_the_cause_with_its_traceback_as_text():
    report, held = failed()
    assert (report.code, report.message) == ("request_failed", "sampling failed: ValueError")
    assert isinstance(report.cause, ValueError)
    assert isinstance(report.cause.__cause__, KeyError)
    (note,) = report.cause.__notes__
    assert note.startswith("Traceback")
    assert "in raises" in note
    assert note.endswith("ValueError: secret")
    assert held() is None, "no frame is kept"


@pytest.mark.parametrize("kind", [AdapterError, RequestFailedError])
def test_an_error_of_ours_keeps_its_words_and_what_it_comes_from(kind):
    report, held = failed(kind)
    assert (report.code, report.message) == (kind.code, "of acme failed")
    assert isinstance(report.cause, ValueError)
    assert held() is None


def test_an_error_of_ours_without_a_cause_has_none():
    assert failure("loading", AdapterError("no place")).cause is None
