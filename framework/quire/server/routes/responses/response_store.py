"""Stored responses, in memory: limits of number, bytes and age, and the turns that they continue.

A response holds the one that it continues, so a conversation stays whole while its last response
is stored; what is held that way counts in the bytes, though it cannot be retrieved any more.

    stored: A  B  C          C continues B, B continues A
    A is removed:            A's bytes stay, as B holds them
    B and C are removed:     the bytes of all three are free
"""

import time
from collections.abc import Callable

from quire.server.keys.account import Account
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

    Attributes:
        num_bytes: Size of all that is held.
    """

    def __init__(
        self,
        max_num: int,
        max_bytes: int,
        ttl_s: float,
        clock: Clock = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self.num_bytes = 0
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._later = later
        self._is_waiting = False  # for a call
        self._kept: dict[tuple[Account, str], StoredResponse] = {}  # the oldest one first
        self._running: dict[tuple[Account, str], StoredResponse] = {}

    @property
    def num_responses(self) -> int:
        """Number of responses that can be found."""
        return len(self._kept) + len(self._running)

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
        key = (account, response_id)
        found = self._kept.get(key) or self._running.get(key)
        if found is None:
            raise no_response(response_id, param)
        return found

    def is_running(self, response: StoredResponse) -> bool:
        """Whether a response is still generated."""
        return self._running.get(response.key) is response

    def begin(self, response: StoredResponse) -> None:
        """Store a response that is generated in the background; nothing but `remove` removes it.

        Raises:
            HTTPError: As many as may be stored are generated at present, or one of the same id; or
                it is too large.
        """
        if response.total_bytes > self._max_bytes:
            raise HTTPError(
                413,
                "the input, with what it continues, is larger than all stored responses may be "
                f"({self._max_bytes} bytes, --responses-store-max-bytes); leave out background",
                code="response_too_large",
                param="background",
            )
        if response.key in self._running:
            raise HTTPError(
                409,
                f"the response {response.id!r:.140} is being generated; send another request_id",
                code="response_in_progress",
                param="request_id",
            )
        if len(self._running) >= self._max_num:
            raise HTTPError(
                429,
                f"{len(self._running)} responses are generated in the background, and the server "
                "stores no more (--responses-store-max); try again later",
                code="rate_limit_exceeded",
            )
        self._drop(self._kept.pop(response.key, None))
        self._hold(response)
        self._running[response.key] = response
        self._make_room()

    def add_event(self, response: StoredResponse, event: bytes) -> None:
        """Add an event to a response that is generated in the background."""
        response.add_event(event)
        if response.num_holders:
            self.num_bytes += len(event)

    def end(self, response: StoredResponse, final: bytes) -> bool:
        """Replace the JSON of a response that is not generated any more.

        Returns:
            False if it is too large to be stored; then it is not stored any more.
        """
        was_stored = self.is_running(response)
        if was_stored:
            self._drop(self._running.pop(response.key))
        response.response = final
        return not was_stored or self.keep(response)

    def keep(self, response: StoredResponse) -> bool:
        """Store a response, and remove the oldest ones in its favour.

        Returns:
            False if it is too large, with what it continues, to be stored at all.
        """
        self.expire()
        self._drop(self._kept.pop(response.key, None))
        if response.total_bytes > self._max_bytes:
            return False
        response.kept_s = self._clock()
        self._hold(response)
        self._kept[response.key] = response
        self._make_room()
        self._expire_later()
        return True

    def remove(self, response: StoredResponse) -> None:
        """Remove a response."""
        for held in (self._kept, self._running):
            if held.get(response.key) is response:
                self._drop(held.pop(response.key))

    def expire(self) -> float | None:
        """Remove what is too old; return the seconds after which the next one is."""
        now_s = self._clock()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            left_s = oldest.kept_s + self._ttl_s - now_s
            if left_s > 0:
                return left_s
            self.remove(oldest)
        return None

    def _expire_later(self) -> None:
        """Remove what is too old, and again when the next one is."""
        left_s = self.expire()
        if left_s is not None and self._later is not None and not self._is_waiting:
            self._is_waiting = True
            self._later(left_s, self._wake)

    def _wake(self) -> None:
        self._is_waiting = False
        self._expire_later()

    def _make_room(self) -> None:
        while self._kept and self._is_over:
            self.remove(next(iter(self._kept.values())))

    @property
    def _is_over(self) -> bool:
        return self.num_responses > self._max_num or self.num_bytes > self._max_bytes

    def _hold(self, response: StoredResponse) -> None:
        for turn in response.turns():
            turn.num_holders += 1
            if turn.num_holders > 1:
                return  # it holds those before it already
            self.num_bytes += turn.num_bytes

    def _drop(self, response: StoredResponse | None) -> None:
        for turn in () if response is None else response.turns():
            turn.num_holders -= 1
            if turn.num_holders:
                return
            self.num_bytes -= turn.num_bytes


def no_response(response_id: str, param: str | None = None) -> HTTPError:
    """Return the error of a response that is not stored, with the status and code of OpenAI's."""
    return HTTPError(
        404 if param is None else 400,
        f"there is no response {response_id!r:.140}; it was not stored, is too old or was deleted, "
        "or made room for others",
        code="response_not_found" if param is None else "previous_response_not_found",
        param=param,
    )
