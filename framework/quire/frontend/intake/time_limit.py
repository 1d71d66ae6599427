"""Time limit of a request before the engine has it: its body, its prompt, its admission.

It counts from the arrival of the request's first byte. From admission on, the engine checks it.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from quire.errors import InvalidRequestError, RequestTimeoutError

MAX_TIMEOUT_S = 1e9
_UNLIMITED = nullcontext()


class TimeLimit:
    """The time by which a request must have finished.

    Args:
        arrival_s: Time of its arrival, by `time.monotonic`.
        timeout_s: Seconds that it may take by its own choice; None: no limit of its own.
        max_timeout_s: Seconds that any request may take; None: no limit.

    Attributes:
        arrival_s: Time of its arrival.

    Raises:
        InvalidRequestError: The timeout is not a positive number.
    """

    __slots__ = ("_end_s", "_max_timeout_s", "_timeout_s", "arrival_s")

    def __init__(
        self, arrival_s: float, timeout_s: float | None = None, max_timeout_s: float | None = None
    ) -> None:
        self.arrival_s = arrival_s
        self._timeout_s = timeout_s
        self._max_timeout_s = max_timeout_s
        self._end_s = math.inf if max_timeout_s is None else arrival_s + max_timeout_s
        if timeout_s is not None:
            check_timeout(timeout_s)
            self._end_s = min(self._end_s, arrival_s + timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit, negative once it has passed."""
        return self._end_s - time.monotonic()

    def check(self, work: str | None = None) -> None:
        """Return if time is left.

        Args:
            work: What has not ended yet, for the error; None: the request was not queued.

        Raises:
            RequestTimeoutError: The limit has passed.
        """
        if self.left_s <= 0:
            raise self._error(work)

    def hold(self, work: str | None = None) -> AbstractAsyncContextManager[None]:
        """Return a context whose work is cancelled once the limit has passed.

        Args:
            work: What had not ended by then, for the error; None: the request was not queued.

        Raises:
            RequestTimeoutError: The limit has passed, at the latest at the end of the work.
        """
        return _UNLIMITED if self._end_s == math.inf else self._hold(work)

    @asynccontextmanager
    async def _hold(self, work: str | None) -> AsyncGenerator[None]:
        self.check(work)
        try:
            async with asyncio.timeout(self.left_s) as timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise  # another one's
            raise self._error(work) from None
        self.check(work)

    def _error(self, work: str | None) -> RequestTimeoutError:
        own_s, max_s = self._timeout_s, self._max_timeout_s
        if own_s is not None and (max_s is None or own_s <= max_s):
            limit, remedy = f"its timeout_s is {own_s:.3g} s", "Give it a longer timeout_s"
        else:
            limit = f"the request_timeout_s here is {max_s:.3g} s"
            remedy = "Start the server with a longer --request-timeout-s"
        waited_s = time.monotonic() - self.arrival_s
        if work is not None:
            return RequestTimeoutError(
                f"{work} had not ended {waited_s:.3g} s after the request's arrival, and {limit}. "
                f"{remedy}"
            )
        return RequestTimeoutError(
            f"the request was not queued {waited_s:.3g} s after its arrival, and {limit}. "
            f"{remedy}, or send fewer requests at once"
        )


def check_timeout(timeout_s: object) -> None:
    """Check a request's `timeout_s`.

    Raises:
        InvalidRequestError: It is neither None nor a positive number of seconds.
    """
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise InvalidRequestError(
            f"timeout_s must be a number of seconds greater than 0, got {timeout_s!r:.100}",
            param="timeout_s",
        )
