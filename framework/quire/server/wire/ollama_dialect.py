"""Errors and streams of Ollama's API, for all routes under /api: a text, and a JSON object a line.

Nothing is sent in silences: clients read every line as JSON.
"""

import msgspec

from quire.server.wire.dialect import Dialect, ErrorDetail, StreamFormat


class OllamaError(msgspec.Struct):
    """The body of every response under /api that is not a success."""

    error: str


def _error(detail: ErrorDetail, status: int, request_id: str) -> bytes:
    del status, request_id
    return msgspec.json.encode(OllamaError(detail.message))


def _line(event: bytes) -> bytes:
    return event + b"\n"


OLLAMA = Dialect(_error, StreamFormat("application/x-ndjson", _line), OllamaError)
