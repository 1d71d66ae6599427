"""Finish reasons in OpenAI's terms, for the pieces of a stream and for whole completions."""

from typing import overload

from quire.errors import RequestFailedError
from quire.outputs import CompletionOutput, Delta
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.protocol import FinishReason
from quire.server.wire.retry_after import retry_headers


@overload
def finish_reason_of(part: CompletionOutput, has_calls: bool = False) -> FinishReason: ...
@overload
def finish_reason_of(part: Delta, has_calls: bool = False) -> FinishReason | None: ...
def finish_reason_of(
    part: Delta | CompletionOutput, has_calls: bool = False
) -> FinishReason | None:
    """Return the finish reason of a completion; None for a delta that is not its last.

    Args:
        part: Whole completion, or a part of it.
        has_calls: Whether the completion contains a whole tool call.

    Raises:
        HTTPError: The completion was aborted.
        RequestFailedError: It failed, or the part should be whole and is incomplete.
    """
    if part.finish_reason == "abort":
        raise HTTPError(
            503,
            "the request was aborted; the server may be shutting down",
            code="aborted",
            headers=retry_headers(),
        )
    if part.finish_reason == "error":
        raise RequestFailedError("the request failed while it ran")
    if part.finish_reason is None and isinstance(part, CompletionOutput):
        raise RequestFailedError("the completion ended without a finish reason")
    return "tool_calls" if has_calls and part.finish_reason == "stop" else part.finish_reason
