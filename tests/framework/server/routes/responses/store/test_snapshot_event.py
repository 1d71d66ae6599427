"""Events with the response: their JSON is that of the structs that describe them."""

import msgspec
import pytest

from quire.server.routes.responses.store.snapshot_event import SnapshotEvent
from quire.server.wire.response_events import ResponseCompleted, ResponseCreated


@pytest.mark.parametrize("kind", [ResponseCreated, ResponseCompleted])
def test_an_event_is_encoded_as_its_struct(kind):
    event = SnapshotEvent(kind.__struct_config__.tag, 3)
    response = {"id": "r", "output": ["ä"]}
    struct = kind(sequence_number=3, response=response)
    assert event.encoded(msgspec.json.encode(response)) == msgspec.json.encode(struct)


def test_a_response_that_has_begun_has_no_output_yet():
    event = SnapshotEvent("x", 0, "in_progress")
    found = msgspec.json.decode(event.restored(b'{"id":"r","status":"failed","output":[1]}'))
    assert found["response"]["id"] == "r"
    assert (found["response"]["status"], found["response"]["output"]) == ("in_progress", [])
