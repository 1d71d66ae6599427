"""Limits of stored responses: what has room, and which response makes room.

Those that are generated in the background stay until their end, so only what fits beside them has
room. A key may begin to generate as much as it leaves to others, and its responses grow to half of
all, unless it has one alone. The oldest of the key that holds most makes room.
"""

from collections.abc import Mapping

from quire.server.keys.account import Account
from quire.server.routes.responses.store.owned_responses import OwnedResponses
from quire.server.routes.responses.store.stored_response import StoredResponse


class StoreLimits:
    """Limits of number and bytes, for the responses of all keys together.

    Args:
        max_num: Largest number of responses.
        max_bytes: Largest size of all of them, with what they continue.
        owned: The responses of each key.
    """

    def __init__(
        self, max_num: int, max_bytes: int, owned: Mapping[Account, OwnedResponses]
    ) -> None:
        self.max_bytes = max_bytes
        self._max_num = max_num
        self._owned = owned

    @property
    def num_responses(self) -> int:
        """Number of responses that can be found."""
        return sum(owned.num for owned in self._owned.values())

    @property
    def num_bytes(self) -> int:
        """Size of all that is held."""
        return sum(owned.num_bytes for owned in self._owned.values())

    @property
    def num_running(self) -> int:
        """Number of responses that are generated."""
        return sum(len(owned.running) for owned in self._owned.values())

    @property
    def running_bytes(self) -> int:
        """Size of those that are generated, with what they continue."""
        return sum(owned.running_bytes for owned in self._owned.values())

    def has_room(self, response: StoredResponse, owned: OwnedResponses, more: int = 0) -> bool:
        """Whether a response, and some bytes more, fit beside those that are generated."""
        num_bytes = self.running_bytes + owned.added_to_running(response) + more
        return self.num_running < self._max_num and num_bytes <= self.max_bytes

    def may_begin(self, response: StoredResponse, owned: OwnedResponses) -> bool:
        """Whether a response may be generated beside the others."""
        if not self.has_room(response, owned):
            return False
        if not (response.account.has_key and owned.running):
            return True
        added = owned.added_to_running(response)
        num_left = self._max_num - self.num_running - 1
        bytes_left = self.max_bytes - self.running_bytes - added
        return len(owned.running) < num_left and owned.running_bytes + added <= bytes_left

    def may_grow(self, account: Account, owned: OwnedResponses, num_bytes: int) -> bool:
        """Whether one that is generated may grow, whatever others begin meanwhile."""
        is_alone = not account.has_key or len(owned.running) == 1
        most = self.max_bytes if is_alone else self.max_bytes // 2
        is_within = owned.running_bytes + num_bytes <= most
        return is_within and self.running_bytes + num_bytes <= self.max_bytes

    def next_to_go(self, newest: StoredResponse | None) -> StoredResponse | None:
        """Return the response that makes room; None if all have room.

        Args:
            newest: Response that has room beside those that are generated, and stays.
        """
        is_many = self.num_responses > self._max_num
        if not is_many and self.num_bytes <= self.max_bytes:
            return None
        sizes = {
            (owned.num if is_many else owned.num_bytes, i): oldest
            for i, owned in enumerate(self._owned.values())
            if (oldest := next(iter(owned.kept.values()), None)) not in (None, newest)
        }
        return sizes[max(sizes)]
