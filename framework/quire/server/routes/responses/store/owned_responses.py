"""The stored responses of one key: those that are kept, and those that are generated."""

from quire.server.routes.responses.store.event_log import size_of
from quire.server.routes.responses.store.held_turns import HeldTurns
from quire.server.routes.responses.store.snapshot_event import Event
from quire.server.routes.responses.store.stored_response import StoredResponse


class OwnedResponses:
    """Stored responses of one key by their ids.

    Attributes:
        kept: Those that have ended, the oldest one first.
        running: Those that are generated in the background.
    """

    def __init__(self) -> None:
        self.kept: dict[str, StoredResponse] = {}
        self.running: dict[str, StoredResponse] = {}
        self._held = HeldTurns()
        self._held_by_running = HeldTurns()

    @property
    def num(self) -> int:
        """Number of responses."""
        return len(self.kept) + len(self.running)

    @property
    def num_bytes(self) -> int:
        """Size of all, with what they continue."""
        return self._held.num_bytes

    @property
    def running_bytes(self) -> int:
        """Size of those that are generated, with what they continue."""
        return self._held_by_running.num_bytes

    def find(self, response_id: str) -> StoredResponse | None:
        """Return a response; None if there is none."""
        return self.kept.get(response_id) or self.running.get(response_id)

    def added_to_running(self, response: StoredResponse) -> int:
        """Return the size of a response, without what those that are generated hold already."""
        return self._held_by_running.added_by(response)

    def begin(self, response: StoredResponse) -> None:
        """Add a response that is generated."""
        self.running[response.id] = response
        self._held.hold(response)
        self._held_by_running.hold(response)

    def keep(self, response: StoredResponse) -> None:
        """Add a response that has ended."""
        self.kept[response.id] = response
        self._held.hold(response)

    def add_event(self, response: StoredResponse, event: Event) -> None:
        """Add an event to a response that is generated."""
        response.add_event(event)
        self._held.grow(size_of(event))
        self._held_by_running.grow(size_of(event))

    def remove(self, response: StoredResponse) -> bool:
        """Remove a response, and return whether it was there."""
        if self.running.get(response.id) is response:
            del self.running[response.id]
            self._held_by_running.drop(response)
        elif self.kept.get(response.id) is response:
            del self.kept[response.id]
        else:
            return False
        self._held.drop(response)
        return True
