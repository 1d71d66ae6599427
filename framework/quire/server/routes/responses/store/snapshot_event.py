"""Events of a stream that show the whole response: stored without it, as it is stored already."""

from dataclasses import dataclass

import msgspec

from quire.server.http.json_response import json_of
from quire.server.wire.responses import Status


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """The first, the second or the last event of a stream.

    Attributes:
        type: Type of the event.
        number: Number of the event.
        status: Status of the response, which has only begun; None: it is the one at the end.
    """

    type: str
    number: int
    status: Status | None = None

    def encoded(self, response: bytes) -> bytes:
        """Return the event as JSON, with the JSON of the response at that time."""
        head = f'{{"type":"{self.type}","sequence_number":{self.number},"response":'
        return b"%b%b}" % (head.encode(), response)

    def restored(self, response: bytes) -> bytes:
        """Return the event as JSON, from the JSON of the response at a later time."""
        return self.encoded(response if self.status is None else _begun(response, self.status))


Event = bytes | SnapshotEvent  # all others are JSON


def _begun(response: bytes, status: Status) -> bytes:
    """Return a response as it was before it had an output."""
    fields = msgspec.json.decode(response, type=dict[str, msgspec.Raw])
    first: dict[str, object] = {"status": status, "output": []}
    first |= dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    return json_of(fields | {name: msgspec.Raw(json_of(value)) for name, value in first.items()})
