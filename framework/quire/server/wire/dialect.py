"""The shapes of errors and of streams, which differ between the families of routes."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec


class ErrorDetail(msgspec.Struct):
    """The error fields that OpenAI's clients read."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every response that is not a success."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """Format of a streamed response.

    Attributes:
        media_type: Its content type.
        frame: Returns the bytes of an event from its JSON text, which is one line.
        last: What ends the stream.
        keep_alive: What is sent in a silence; empty if nothing may be.
    """

    media_type: str
    frame: Callable[[bytes], bytes]
    last: bytes = b""
    keep_alive: bytes = b""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a family of routes has of its own in all its responses.

    Attributes:
        error: Returns the JSON text of an error from its details, its status and the request's id.
        stream: Format of its streams.
        error_body: Struct of the error, for the description of the API.
        request_id_header: Name of a header that has the request's id, beside `x-request-id`; None
            for no other.
    """

    error: Callable[[ErrorDetail, int, str], bytes]
    stream: StreamFormat
    error_body: type[msgspec.Struct] = ErrorBody
    request_id_header: bytes | None = None
    takes_any_content_type: bool = False


def _openai_error(detail: ErrorDetail, status: int, request_id: str) -> bytes:
    del status, request_id
    return msgspec.json.encode(ErrorBody(detail))


def _data(event: bytes) -> bytes:
    return b"data: %b\n\n" % event


EVENTS = "text/event-stream; charset=utf-8"
COMMENT = b": keep-alive\n\n"
OPENAI = Dialect(_openai_error, StreamFormat(EVENTS, _data, b"data: [DONE]\n\n", COMMENT))
