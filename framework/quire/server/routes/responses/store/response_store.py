"""Stored responses, in memory: limits of number, bytes and age, for all keys together.

A response holds the one that it continues, so a conversation stays whole while its last response
is stored; what is held that way counts in the bytes, though it cannot be retrieved any more.
"""

import time
from collections.abc import Callable

from quire.server.keys.account import Account
from quire.server.routes.responses.store.event_log import size_of
from quire.server.routes.responses.store.owned_responses import OwnedResponses
from quire.server.routes.responses.store.snapshot_event import Event
from quire.server.routes.responses.store.store_errors import (
    id_is_taken,
    input_too_large,
    no_response,
    output_too_large,
    store_is_full,
    too_many_events,
)
from quire.server.routes.responses.store.store_limits import StoreLimits
from quire.server.routes.responses.store.stored_response import StoredResponse
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
        self._ttl_s = ttl_s
        self._clock = clock
        self._later = later
        self._is_waiting = False  # for a call
        self._owned: dict[Account, OwnedResponses] = {}
        self._limits = StoreLimits(max_num, max_bytes, self._owned)

    @property
    def num_responses(self) -> int:
        """Number of responses that can be found."""
        return self._limits.num_responses

    @property
    def num_bytes(self) -> int:
        """Size of all that is held."""
        return self._limits.num_bytes

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
        found = self._of(account).find(response_id)
        if found is None:
            raise no_response(response_id, param)
        return found

    def check_id(self, account: Account, response_id: str) -> None:
        """Check that an account has no response of an id.

        Raises:
            HTTPError: It has one.
        """
        found = self._of(account).find(response_id)
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
        if response.total_bytes > self._limits.max_bytes:
            raise input_too_large(self._limits.max_bytes)
        owned = self._of(response.account)
        if not self._limits.may_begin(response, owned):
            raise store_is_full(self._limits.num_running, self._limits.running_bytes)
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
        if not self._limits.may_grow(response.account, owned, size_of(event)):
            raise too_many_events(self._limits.max_bytes)
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
        if not self._limits.has_room(response, owned, num_bytes):
            response.events = None
        if not self._limits.has_room(response, owned):
            response.response, response.events, response.is_running = before, events, True
            owned.begin(response)
            return False
        if events is not None:
            events.add(last)  # also for those who read them now
        self._keep(response, owned)
        return True

    def no_room(self) -> HTTPError:
        """Return the error of a response for which there is no room at its end."""
        return output_too_large(self._limits.max_bytes)

    def keep(self, response: StoredResponse) -> bool:
        """Store a response that has ended, and remove older ones in its favour.

        Returns:
            False if there is no room for it, or there is one of the same id.
        """
        self.expire()
        owned = self._of(response.account)
        if owned.find(response.id) is not None or not self._limits.has_room(response, owned):
            return False
        self._owned[response.account] = owned
        self._keep(response, owned)
        return True

    def remove(self, response: StoredResponse) -> None:
        """Remove a response."""
        owned = self._of(response.account)
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

    def _of(self, account: Account) -> OwnedResponses:
        """Return the responses of an account; without any, a place for them that is not held."""
        return self._owned.get(account) or OwnedResponses()

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

    def _make_room(self, newest: StoredResponse | None = None) -> None:
        while (oldest := self._limits.next_to_go(newest)) is not None:
            self.remove(oldest)


def _end(response: StoredResponse, final: bytes, last: Event) -> None:
    """End a response that is not stored any more, for those who read its events."""
    response.response = final
    response.add_event(last)
