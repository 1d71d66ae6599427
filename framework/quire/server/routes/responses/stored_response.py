"""A stored response with its input, and the turns of the conversation before it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from quire.server.keys.account import Account

ENTRY_BYTES = 1024  # of a response beside its texts


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
        num_holders: Number of stored responses that hold it, itself included.
        events: Events of its stream, if that can be read again.
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
        self.num_holders = 0
        self.events: list[bytes] | None = None
        self._num_event_bytes = 0

    def add_event(self, event: bytes) -> None:
        """Add an event of its stream."""
        self.events = self.events or []
        self.events.append(event)
        self._num_event_bytes += len(event)

    @property
    def num_bytes(self) -> int:
        """Size of what it holds itself."""
        return ENTRY_BYTES + len(self.input_items) + len(self.response) + self._num_event_bytes

    @property
    def total_bytes(self) -> int:
        """Size of it and of what it continues, which does not change any more."""
        return self.num_bytes + self._previous_bytes

    @property
    def key(self) -> tuple[Account, str]:
        """What finds it."""
        return self.account, self.id

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
