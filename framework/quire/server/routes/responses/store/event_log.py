"""Events of a response in the background, which can be read again while it is stored."""

from quire.server.routes.responses.store.snapshot_event import Event

EVENT_BYTES = 64  # of an event beside its JSON


def size_of(event: Event) -> int:
    """Return the size of an event in a log."""
    return EVENT_BYTES + (len(event) if isinstance(event, bytes) else 0)


class EventLog:
    """Events of one response, in order.

    Attributes:
        num_bytes: Size of all of them.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._events.append(event)
        self.num_bytes += size_of(event)

    def encoded(self, number: int, response: bytes) -> bytes:
        """Return an event as JSON.

        Args:
            number: Its number.
            response: JSON of the response, as it is now.
        """
        event = self._events[number]
        return event if isinstance(event, bytes) else event.restored(response)

    def is_snapshot(self, number: int) -> bool:
        """Whether an event has the whole response."""
        return not isinstance(self._events[number], bytes)
