"""Turns that a set of responses holds: themselves and what they continue, each counted once.

held: B  C               C continues B, B continues A
B is dropped:            A and B stay, as C holds them
C is dropped:            nothing is held
"""

from quire.server.routes.responses.store.stored_response import StoredResponse


class HeldTurns:
    """Turns with the number of those that hold each.

    Attributes:
        num_bytes: Size of all turns.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._num_holders: dict[StoredResponse, int] = {}

    def hold(self, response: StoredResponse) -> None:
        """Hold a response, and what it continues."""
        for turn in response.turns():
            num_holders = self._num_holders.get(turn, 0)
            self._num_holders[turn] = num_holders + 1
            if num_holders:
                return  # it holds those before it already
            self.num_bytes += turn.num_bytes

    def drop(self, response: StoredResponse) -> None:
        """Hold it no longer; its size must be that with which it was held."""
        for turn in response.turns():
            self._num_holders[turn] -= 1
            if self._num_holders[turn]:
                return
            del self._num_holders[turn]
            self.num_bytes -= turn.num_bytes

    def added_by(self, response: StoredResponse) -> int:
        """Return the size that holding a response would add."""
        if not self._num_holders:
            return response.total_bytes
        added = 0
        for turn in response.turns():
            if turn in self._num_holders:
                break
            added += turn.num_bytes
        return added

    def grow(self, num_bytes: int) -> None:
        """Count what a held response has become larger."""
        self.num_bytes += num_bytes
