"""Named events: the name is the event's type."""

import pytest

from quire.server.wire.dialect import OPENAI
from quire.server.wire.families import dialect_of
from quire.server.wire.responses_dialect import RESPONSES


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/responses", RESPONSES),
        ("/v1/responses/resp_1/cancel", RESPONSES),
        ("/v1/responses_of_others", OPENAI),
        ("/v1/chat/completions", OPENAI),
    ],
)
def test_a_path_has_the_dialect_of_its_family(path, dialect):
    assert dialect_of(path) is dialect


def test_an_event_has_its_name_and_an_error_too():
    frame = RESPONSES.stream.frame
    event = b'{"type":"response.created","x":"\\"type\\":1"}'
    assert frame(event) == b"event: response.created\ndata: " + event + b"\n\n"
    assert frame(b'{"error":{}}') == b'event: error\ndata: {"error":{}}\n\n'
    assert RESPONSES.stream.last == b""
