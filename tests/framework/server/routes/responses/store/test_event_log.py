"""Events that can be read again: as they were sent, whatever the response has become."""

import msgspec

from quire.server.routes.responses.store.event_log import EVENT_BYTES, EventLog, size_of
from quire.server.routes.responses.store.snapshot_event import SnapshotEvent

FIRST = {"id": "r", "status": "queued", "output": [], "usage": None, "error": None, "user": "u"}
FIRST |= {"completed_at": None, "incomplete_details": None}
FINAL = FIRST | {"status": "completed", "output": [{"text": "ä"}], "usage": {"n": 1}}
FINAL |= {"completed_at": 7}


def test_events_are_read_as_they_were_sent():
    log, final = EventLog(), msgspec.json.encode(FINAL)
    events = [SnapshotEvent("a", 0, "queued"), b'{"type":"b"}', SnapshotEvent("c", 2)]
    for event in events:
        log.add(event)
    assert [log.is_snapshot(i) for i in range(len(log))] == [True, False, True]
    assert log.encoded(0, final) == events[0].encoded(msgspec.json.encode(FIRST))
    assert log.encoded(1, final) == events[1]
    assert log.encoded(2, final) == b'{"type":"c","sequence_number":2,"response":' + final + b"}"


def test_the_response_does_not_count_with_its_events():
    log = EventLog()
    log.add(SnapshotEvent("a", 0, "queued"))
    log.add(b"x" * 100)
    assert log.num_bytes == 2 * EVENT_BYTES + 100 == EVENT_BYTES + size_of(b"x" * 100)
