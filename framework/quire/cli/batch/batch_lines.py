"""Lines of a batch: requests and results, with the fields of OpenAI's Batch API."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from quire.plugins.registry import did_you_mean

INVALID_LINE = "invalid_line"  # code of a line that is no request
NO_JSON = "not_json"  # code of a response that cannot stand in a line
PASSING = frozenset({408, 429})  # statuses of errors that may pass, beside those of the server
SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request.

    Attributes:
        custom_id: Client's name of the request.
        url: Path of the route.
        body: JSON text of the body, as it stands in the file.
    """

    custom_id: str
    url: str
    body: bytes


class BatchResponse(msgspec.Struct):
    """The response of a route."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchFault(msgspec.Struct):
    """Why there is no response, or why it is an error."""

    code: str | None
    message: str


class BatchResult(msgspec.Struct, kw_only=True):
    """The result of one request; `id` comes first, so that a line is known by its beginning."""

    id: str
    custom_id: str | None
    response: BatchResponse | None = None
    error: BatchFault | None = None

    def line(self) -> bytes:
        """Return the line of the file."""
        return msgspec.json.encode(self) + b"\n"


class LineError(Exception):
    """A line is no request.

    Attributes:
        custom_id: Its name, if it has one nevertheless.
    """

    def __init__(self, message: str, custom_id: str | None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


class _Named(msgspec.Struct):
    custom_id: str


class _Line(msgspec.Struct):
    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Mode(msgspec.Struct):
    stream: Any = None
    background: Any = None


class _ErrorDetail(msgspec.Struct):
    message: str
    code: str | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


def custom_id_of(line: bytes) -> str | None:
    """Return the name of a line's request; None if it has none."""
    try:
        return msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_request(line: bytes, urls: Collection[str]) -> BatchRequest:
    """Read a line as a request.

    Args:
        line: The line.
        urls: Paths of the routes that a request may name.

    Raises:
        LineError: It is none.
    """
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"the line is no request: {error}", custom_id_of(line)) from None
    if read.url not in urls:
        known = ", ".join(urls)
        hint = did_you_mean(read.url, urls)
        message = f"url must be one of {known}, got {read.url[:100]!r}{hint}"
        raise LineError(message, read.custom_id)
    mode = _mode_of(bytes(read.body))
    if mode.stream:
        raise LineError("a batch has no streams; leave stream out", read.custom_id)
    if mode.background:
        message = "a batch waits for its responses; leave background out"
        raise LineError(message, read.custom_id)
    return BatchRequest(read.custom_id, read.url, bytes(read.body))


def fault_of(body: bytes, status: int) -> BatchFault:
    """Return the error that a response with a status of 400 or more has in its body."""
    try:
        detail = msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return BatchFault(None, f"the response has the status {status}")
    return BatchFault(detail.code or detail.type, detail.message)


def may_pass(status: int) -> bool:
    """Return whether a request with the status of an error may succeed if it is sent again."""
    return status in PASSING or status >= SERVER_ERROR


def _mode_of(body: bytes) -> _Mode:
    try:
        return msgspec.json.decode(body, type=_Mode)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Mode()  # the route says what is wrong with the body
