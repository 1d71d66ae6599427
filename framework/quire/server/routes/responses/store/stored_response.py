"""A stored response with its input, and the turns of the conversation before it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from quire.server.keys.account import Account
from quire.server.routes.responses.mcp.approvals import RunApprovals
from quire.server.routes.responses.store.event_log import EventLog
from quire.server.routes.responses.store.snapshot_event import Event

ENTRY_BYTES = 1024  # of a response beside its texts
END_BYTES = 1024  # by which one without an output grows at its end, at most: its error, its times


class StoredResponse:
    """A response with its input.

    Args:
        response_id: Its id.
        account: Account of the key that made it; no other one finds it.
        input_items: JSON of its own input items.
        previous: Response that it continues.
        response: JSON of the response.

    Attributes:
        kept_s: Time from which on its age counts.
        is_running: Whether it is stored and still generated.
        events: Events of its stream, if that can be read again.
        run_approvals: Calls that were approved and run, of all responses with the same beginning.
    """

    def __init__(
        self,
        response_id: str,
        account: Account,
        input_items: bytes,
        previous: "StoredResponse | None",
        response: bytes,
    ) -> None:
        self.id = response_id
        self.account = account
        self.input_items = input_items
        self.previous = previous
        self._previous_bytes = 0 if previous is None else previous.total_bytes
        self.response = response
        self.kept_s = 0.0
        self.is_running = False
        self.events: EventLog | None = None
        self.run_approvals: RunApprovals = (
            RunApprovals() if previous is None else previous.run_approvals
        )

    def add_event(self, event: Event) -> None:
        """Add an event of its stream, if its events are stored."""
        if self.events is not None:
            self.events.add(event)

    @property
    def num_bytes(self) -> int:
        """Size of what it holds itself; while it is generated, with what its end may add."""
        own = ENTRY_BYTES + len(self.input_items) + len(self.response)
        of_events = 0 if self.events is None else self.events.num_bytes
        return own + of_events + (END_BYTES if self.is_running else 0)

    @property
    def total_bytes(self) -> int:
        """Size of it and of what it continues, which does not change any more."""
        return self.num_bytes + self._previous_bytes

    def turns(self) -> Iterator["StoredResponse"]:
        """Yield it, and those before it, the last one first."""
        turn: StoredResponse | None = self
        while turn is not None:
            yield turn
            turn = turn.previous

    def items(self) -> list[dict[str, Any]]:
        """Return the input and output items of the whole conversation."""
        found: list[dict[str, Any]] = []
        for turn in reversed([*self.turns()]):
            found += msgspec.json.decode(turn.input_items)
            found += msgspec.json.decode(turn.response, type=_WithOutput).output
        return found

    def input_of_all(self) -> list[dict[str, Any]]:
        """Return the items that it was generated from."""
        before = [] if self.previous is None else self.previous.items()
        own: list[dict[str, Any]] = msgspec.json.decode(self.input_items)
        return before + own


class _WithOutput(msgspec.Struct):
    output: list[dict[str, Any]]
