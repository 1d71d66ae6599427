"""Errors and streams in the shape of Anthropic's API, for all routes under /v1/messages.

An error's type follows from its status. Fields are named in its message as this API names them,
whatever the conversation was translated to.
"""

import re

import msgspec

from quire.server.wire.dialect import EVENTS, Dialect, ErrorDetail, StreamFormat

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_SENT_AS = (  # name in a translated conversation -> name in this API
    (re.compile(r"(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"\btool_choice required\b"), "tool_choice any"),
)
_STOP = re.compile(r"\bstop\b(?!_)")
_NAME = slice(9, None)  # behind `{"type":"`, with which the JSON text of each event begins


class ErrorCode(msgspec.Struct):
    """The stable code of an error, as `code` in errors of OpenAI's shape."""

    error_code: str


class MessageErrorDetail(msgspec.Struct):
    """The error fields that Anthropic's clients read."""

    type: str
    message: str
    details: ErrorCode | None = None


class MessageError(msgspec.Struct, tag_field="type", tag="error"):
    """The body of every response under /v1/messages that is not a success."""

    error: MessageErrorDetail
    request_id: str


def error_type_of(status: int) -> str:
    """Return the type of an error by its HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _error(detail: ErrorDetail, status: int, request_id: str) -> bytes:
    message = detail.message
    if detail.param == "stop":
        message = _STOP.sub("stop_sequences", message, count=1)
    elif detail.param is not None:
        for pattern, name in _SENT_AS:
            message = pattern.sub(name, message)
    details = None if detail.code is None else ErrorCode(detail.code)
    found = MessageErrorDetail(error_type_of(status), message, details)
    return msgspec.json.encode(MessageError(found, request_id))


def _event(event: bytes) -> bytes:
    """Return an event with its name, which is its type."""
    name = event[_NAME].partition(b'"')[0]
    return b"event: %b\ndata: %b\n\n" % (name, event)


PING = _event(b'{"type":"ping"}')
ANTHROPIC = Dialect(_error, StreamFormat(EVENTS, _event, b"", PING), MessageError, b"request-id")
