"""A completion ends by its length, its end or its calls; any other end is an error."""

import pytest

from quire.errors import RequestFailedError
from quire.outputs import CompletionOutput, Delta
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.http_errors import HTTPError

PARTS = [CompletionOutput, Delta]


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize(
    ("end", "has_calls", "shown"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("length", False, "length"),
        ("length", True, "length"),
    ],
)
def test_a_completion_ends_by_its_calls_unless_it_was_cut(kind, end, has_calls, shown):
    part = kind(index=0, text="", token_ids=[], finish_reason=end)
    assert finish_reason_of(part, has_calls) == shown


@pytest.mark.parametrize("kind", PARTS)
def test_an_aborted_completion_is_an_error_that_says_when_to_come_back(kind):
    with pytest.raises(HTTPError) as caught:
        finish_reason_of(kind(index=0, text="half", token_ids=[], finish_reason="abort"))
    assert (caught.value.status, caught.value.name) == (503, "aborted")
    assert caught.value.headers == {"retry-after": "1"}


@pytest.mark.parametrize("kind", PARTS)
def test_a_completion_that_failed_is_an_error(kind):
    with pytest.raises(RequestFailedError, match="failed while it ran"):
        finish_reason_of(kind(index=0, text="half", token_ids=[], finish_reason="error"))


def test_only_a_delta_may_have_no_end():
    assert finish_reason_of(Delta(index=0, text="half", token_ids=[])) is None
    with pytest.raises(RequestFailedError, match="without a finish reason"):
        finish_reason_of(CompletionOutput(index=0, text="half", token_ids=[]))
