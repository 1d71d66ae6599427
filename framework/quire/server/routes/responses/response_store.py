"""Stored responses, in memory: limits of number, bytes and age, for all keys together.

A response holds the one that it continues, so a conversation stays whole while its last response
is stored; what is held that way counts in the bytes, though it cannot be retrieved any more.

Those that are generated stay until their end, and a response that is stored is the last to make
room. What has no room beside those that are generated is not stored. The oldest of the key that
holds most makes room for others. A key may begin to generate as much as it leaves to others, and
its responses grow to half of all, unless it has one alone.
"""

import time
from collections.abc import Callable

from quire.server.keys.account import Account
from quire.server.routes.responses.event_log import size_of
from quire.server.routes.responses.owned_responses import OwnedResponses
from quire.server.routes.responses.snapshot_event import Event
from quire.server.routes.responses.store_errors import (
    id_is_taken,
    input_too_large,
    no_response,
    output_too_large,
    store_is_full,
    too_many_events,
)
from quire.server.routes.responses.stored_response import StoredResponse
from quire.server.wire.http_errors import HTTPError

Clock = Callable[[], float]
Later = Callable[[float, Callable[[], None]], object]  # calls a function after some seconds


class ResponseStore:
    """Stored responses; used in one event loop.

    Args:
        max_num: Largest number of responses.
        max_bytes: Largest size of all of them, with what they continue.
        ttl_s: Seconds for which a response is kept.
        clock: Clock of their age, in seconds.
        later: Function that calls `expire` in time; None: they expire with the next request.
    """

    def __init__(
        self,
        max_num: int,
        max_bytes: int,
        ttl_s: float,
        clock: Clock = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._later = later
        self._is_waiting = False  # for a call
        self._owned: dict[Account, OwnedResponses] = {}

    @property
    def num_responses(self) -> int:
        """Number of responses that can be found."""
        return sum(owned.num for owned in self._owned.values())

    @property
    def num_bytes(self) -> int:
        """Size of all that is held."""
        return sum(owned.num_bytes for owned in self._owned.values())

    def find(self, account: Account, response_id: str, param: str | None = None) -> StoredResponse:
        """Return a response of an account.

        Args:
            account: Account of the request's key.
            response_id: Id of the response.
            param: Field of the request that names it, if one does.

        Raises:
            HTTPError: There is none, or another key made it.
        """
        self.expire()
        found = self._owned.get(account, OwnedResponses()).find(response_id)
        if found is None:
            raise no_response(response_id, param)
        return found

    def check_id(self, account: Account, response_id: str) -> None:
        """Check that an account has no response of an id.

        Raises:
            HTTPError: It has one.
        """
        found = self._owned.get(account, OwnedResponses()).find(response_id)
        if found is not None:
            raise id_is_taken(found)

    def begin(self, response: StoredResponse) -> None:
        """Store a response that is generated in the background; nothing but `remove` removes it.

        Raises:
            HTTPError: Those that are generated leave no room at present, or there is one of the
                same id; or it is too large.
        """
        self.expire()
        self.check_id(response.account, response.id)
        response.is_running = True  # from here on its size is that of one that is generated
        if response.total_bytes > self._max_bytes:
            raise input_too_large(self._max_bytes)
        owned = self._owned.get(response.account, OwnedResponses())
        if not self._may_begin(response, owned):
            raise store_is_full(self._num_running, self._running_bytes)
        self._owned[response.account] = owned
        owned.begin(response)
        self._make_room()

    def add_event(self, response: StoredResponse, event: Event) -> None:
        """Add an event to a response that is generated in the background, as a stream.

        Raises:
            HTTPError: There is no room for it.
        """
        if not response.is_running:  # it was removed, and its readers are sent its end
            response.add_event(event)
            return
        owned = self._owned[response.account]
        if not self._may_grow(response.account, owned, size_of(event)):
            raise too_many_events(self._max_bytes)
        owned.add_event(response, event)
        self._make_room()

    def end(self, response: StoredResponse, final: bytes, last: Event) -> bool:
        """Replace the JSON of a response that is not generated any more.

        Its events are stored no longer if there is no room for them.

        Args:
            response: The response.
            final: Its JSON.
            last: Its last event.

        Returns:
            False if there is no room for it; then nothing has changed. There is always room for
            one without an output.
        """
        if not response.is_running:
            _end(response, final, last)
            return True
        owned = self._owned[response.account]
        before, events = response.response, response.events
        owned.remove(response)
        response.response, response.is_running = final, False
        num_bytes = 0 if events is None else size_of(last)
        if not self._has_room(response, owned, num_bytes):
            response.events = None
        if not self._has_room(response, owned):
            response.response, response.events, response.is_running = before, events, True
            owned.begin(response)
            return False
        if events is not None:
            events.add(last)  # also for those who read them now
        self._keep(response, owned)
        return True

    def no_room(self) -> HTTPError:
        """Return the error of a response for which there is no room at its end."""
        return output_too_large(self._max_bytes)

    def keep(self, response: StoredResponse) -> bool:
        """Store a response that has ended, and remove older ones in its favour.

        Returns:
            False if there is no room for it, or there is one of the same id.
        """
        self.expire()
        owned = self._owned.get(response.account, OwnedResponses())
        if owned.find(response.id) is not None or not self._has_room(response, owned):
            return False
        self._owned[response.account] = owned
        self._keep(response, owned)
        return True

    def remove(self, response: StoredResponse) -> None:
        """Remove a response."""
        owned = self._owned.get(response.account, OwnedResponses())
        if owned.remove(response):
            response.is_running = False
        if not owned.num:
            self._owned.pop(response.account, None)

    def expire(self) -> float | None:
        """Remove what is too old, or of keys that are gone.

        Returns:
            Seconds after which the next one is too old; None without any.
        """
        now_s, next_s = self._clock(), list[float]()
        for account, owned in [*self._owned.items()]:
            while owned.kept:
                oldest = next(iter(owned.kept.values()))
                left_s = oldest.kept_s + self._ttl_s - now_s
                if left_s > 0 and not account.is_removed:
                    next_s.append(left_s)
                    break
                self.remove(oldest)
        return min(next_s, default=None)

    def _keep(self, response: StoredResponse, owned: OwnedResponses) -> None:
        response.kept_s = self._clock()
        owned.keep(response)
        self._make_room(newest=response)
        self._expire_later()

    def _expire_later(self) -> None:
        """Remove what is too old, and again when the next one is."""
        left_s = self.expire()
        if left_s is not None and self._later is not None and not self._is_waiting:
            self._is_waiting = True
            self._later(left_s, self._wake)

    def _wake(self) -> None:
        self._is_waiting = False
        self._expire_later()

    @property
    def _num_running(self) -> int:
        return sum(len(owned.running) for owned in self._owned.values())

    @property
    def _running_bytes(self) -> int:
        return sum(owned.running_bytes for owned in self._owned.values())

    def _has_room(self, response: StoredResponse, owned: OwnedResponses, more: int = 0) -> bool:
        """Whether a response, and some bytes more, fit beside those that are generated."""
        num_bytes = self._running_bytes + owned.added_to_running(response) + more
        return self._num_running < self._max_num and num_bytes <= self._max_bytes

    def _may_begin(self, response: StoredResponse, owned: OwnedResponses) -> bool:
        if not self._has_room(response, owned):
            return False
        if not (response.account.has_key and owned.running):
            return True
        added = owned.added_to_running(response)
        num_left = self._max_num - self._num_running - 1
        bytes_left = self._max_bytes - self._running_bytes - added
        return len(owned.running) < num_left and owned.running_bytes + added <= bytes_left

    def _may_grow(self, account: Account, owned: OwnedResponses, num_bytes: int) -> bool:
        is_alone = not account.has_key or len(owned.running) == 1
        most = self._max_bytes if is_alone else self._max_bytes // 2  # whatever others begin
        is_within = owned.running_bytes + num_bytes <= most
        return is_within and self._running_bytes + num_bytes <= self._max_bytes

    def _make_room(self, newest: StoredResponse | None = None) -> None:
        """Remove the oldest of those that hold most; what is generated, and the newest, fit."""
        while (is_many := self.num_responses > self._max_num) or self.num_bytes > self._max_bytes:
            sizes = {
                (owned.num if is_many else owned.num_bytes, i): oldest
                for i, owned in enumerate(self._owned.values())
                if (oldest := next(iter(owned.kept.values()), None)) not in (None, newest)
            }
            self.remove(sizes[max(sizes)])


def _end(response: StoredResponse, final: bytes, last: Event) -> None:
    """End a response that is not stored any more, for those who read its events."""
    response.response = final
    response.add_event(last)
