"""Errors and streams of Ollama's API, for all routes under /api: a text, and a JSON object a line.

Nothing is sent in silences: clients read every line as JSON.
"""

import msgspec

from quire.server.wire.dialect import Dialect, ErrorDetail, StreamFormat

_SENT_AS = {  # field of a translated request -> how Ollama's clients send it
    "max_tokens": "options.num_predict",
    "mirostat_mode": "options.mirostat",
    "repetition_penalty": "options.repeat_penalty",
    "structured_outputs": "format",
}


class OllamaError(msgspec.Struct):
    """The body of every response under /api that is not a success."""

    error: str


def _error(detail: ErrorDetail, status: int, request_id: str) -> bytes:
    del status, request_id
    message = detail.message
    if sent := _SENT_AS.get(detail.param or ""):
        message = message.replace(detail.param or "", sent, 1)
    return msgspec.json.encode(OllamaError(message))


def _line(event: bytes) -> bytes:
    return event + b"\n"


OLLAMA = Dialect(
    _error,
    StreamFormat("application/x-ndjson", _line),
    OllamaError,
    takes_any_content_type=True,  # as `curl -d` sends it
)
