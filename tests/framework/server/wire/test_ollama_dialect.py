"""Errors and streams under /api have the shape that Ollama's clients read."""

import json

import pytest

from quire.server.wire.dialect import ErrorDetail
from quire.server.wire.families import dialect_of
from quire.server.wire.ollama_dialect import OLLAMA


@pytest.mark.parametrize("path", ["/api", "/api/chat", "/api/no/such"])
def test_all_paths_under_api_have_it(path):
    assert dialect_of(path) is OLLAMA
    assert dialect_of(path.replace("/api", "/apis")) is not OLLAMA


@pytest.mark.parametrize(
    ("param", "sent"),
    [
        ("mirostat_mode", "options.mirostat"),
        ("max_tokens", "options.num_predict"),
        ("repetition_penalty", "options.repeat_penalty"),
        ("structured_outputs", "format"),
        ("typical_p", "typical_p"),
    ],
)
def test_an_error_is_a_text_with_the_names_that_were_sent(param, sent):
    detail = ErrorDetail(f"{param} must be less", "invalid_request_error", param, "x")
    assert json.loads(OLLAMA.error(detail, 400, "req-1")) == {"error": f"{sent} must be less"}


def test_a_stream_is_a_line_for_each_object_and_nothing_else():
    assert OLLAMA.stream.frame(b'{"a":1}') == b'{"a":1}\n'
    assert (OLLAMA.stream.last, OLLAMA.stream.keep_alive) == (b"", b"")
