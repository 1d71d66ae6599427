"""Account of one key: its limits, what is left of them, and its usage.

Requests are limited before their body is read. Tokens are reserved when the prompt is known:
the prompt's, and those of completions whose length the request limits. What a completion takes
beyond the reservation is charged at once, what it leaves is given back at its end; so the level may
be negative for a while, and then further requests wait.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope

from quire.errors import UnknownModelError
from quire.server.keys.api_key import NO_LIMITS, KeyLimits
from quire.server.keys.ledger import KeyUsage, Ledger, Level, LocalLedger
from quire.server.keys.token_bucket import TokenBucket
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.retry_after import retry_headers

MINUTE_S = 60.0
BUSY_RETRY_S = 1.0  # after a refusal by max_concurrent: when a request ends is unknown

Clock = Callable[[], float]


class Account:
    """Limits and usage of one key, or of all requests without a key; used in one event loop.

    Args:
        name: Name of the key.
        limits: Limits of the key.
        cache_salt: Salt that separates the key's prefix cache from others; None: it is shared.
        has_key: Whether its requests have a key.
        clock: Clock of the limits, in seconds.
        ledger: Where it counts; None: in a new one of this process.

    Attributes:
        is_removed: Whether its key is not one of the server any more.
    """

    def __init__(
        self,
        name: str,
        limits: KeyLimits = NO_LIMITS,
        cache_salt: str | None = None,
        has_key: bool = True,
        clock: Clock = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        self.cache_salt = cache_salt
        self.has_key = has_key
        self.is_removed = False
        self._ledger: Ledger = LocalLedger() if ledger is None else ledger
        self._clock = clock
        self.set_limits(limits)

    @property
    def usage(self) -> KeyUsage:
        """Counts since the start of the server."""
        return self._ledger.usage

    @property
    def num_running(self) -> int:
        """Requests at present."""
        return self._ledger.num_running

    def set_limits(self, limits: KeyLimits) -> None:
        """Apply limits; both buckets are full then, unless other processes use them, too."""
        ledger = self._ledger
        self.limits = limits
        if not ledger.keeps_levels:
            ledger.requests.debt = ledger.tokens.debt = 0.0
        with ledger.lock():
            self.requests = self._bucket(limits.requests_per_minute, ledger.requests)
            self.tokens = self._bucket(limits.tokens_per_minute, ledger.tokens)

    def request(self) -> "RunningRequest":
        """Return a context that counts a request while it runs.

        Entering it raises an `HTTPError` if a limit refuses the request.
        """
        return RunningRequest(self)

    def begin(self, *, has_place: bool = False) -> None:
        """Count a request that begins.

        Args:
            has_place: Whether it runs in the place of another one, which is counted as running.

        Raises:
            HTTPError: A limit refuses it.
        """
        ledger = self._ledger
        with ledger.lock():
            self._take_request(has_place=has_place)
            ledger.add(KeyUsage(num_requests=1))
            if not has_place:
                ledger.run(1)

    def end(self) -> None:
        """Count a request that has begun as over."""
        with self._ledger.lock():
            self._ledger.run(-1)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as running after its response was sent, as one in the background is."""
        with self._ledger.lock():
            self._ledger.run(1)
        try:
            yield
        finally:
            self.end()

    def reserve(self, num_prompt_tokens: int, num_completion_tokens: int) -> "TokenReservation":
        """Reserve the tokens of a request; the caller closes the reservation.

        Args:
            num_prompt_tokens: Tokens of its prompts.
            num_completion_tokens: Most tokens of its completions; 0 if it sets no limit.

        Raises:
            HTTPError: There are not so many tokens now.
        """
        num_tokens = num_prompt_tokens + num_completion_tokens
        if self.tokens is not None:
            with self._ledger.lock():
                wait_s = self.tokens.take(num_tokens, self._clock())
                if wait_s:
                    raise self._refusal("tokens per minute", self.limits.tokens_per_minute, wait_s)
        return TokenReservation(self, num_tokens)

    def charge(self, num_tokens: int) -> None:
        """Charge tokens beyond a reservation, or give some of it back."""
        if self.tokens is not None and num_tokens:
            with self._ledger.lock():
                self.tokens.charge(num_tokens, self._clock())

    def count_tokens(self, num_prompt: int, num_cached: int, num_completion: int) -> None:
        """Count the tokens of a request that is over."""
        with self._ledger.lock():
            self._ledger.add(
                KeyUsage(
                    num_prompt_tokens=num_prompt,
                    num_cached_tokens=num_cached,
                    num_completion_tokens=num_completion,
                )
            )

    def count_refusal(self) -> None:
        """Count a request that is refused."""
        with self._ledger.lock():
            self._ledger.add(KeyUsage(num_refused=1))

    def may_use(self, model: str) -> bool:
        """Whether the key may use a model or an adapter."""
        return self.limits.models is None or model in self.limits.models

    def check_model(self, name: str) -> None:
        """Check that the key may use a model or an adapter.

        Raises:
            UnknownModelError: It may not.
        """
        if not self.may_use(name):
            models = ", ".join(self.limits.models or ())
            raise UnknownModelError(
                f"the key {self.name!r} may not use {name[:200]!r}; it may use {models}",
                param="model",
            )

    def priority_of(self, given: int | None) -> int:
        """Return the priority of a request: not before the key's own."""
        own = self.limits.priority
        if own is None:
            return given or 0
        return own if given is None else max(own, given)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that say what is left of the limits, named as by OpenAI."""
        if self.requests is None and self.tokens is None:
            return []
        with self._ledger.lock():
            return self._headers()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for kind, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                level = bucket.level(self._clock())
                full_s = bucket.wait_s(bucket.capacity, self._clock())
                for name, value in (
                    ("limit", f"{bucket.capacity:.0f}"),
                    ("remaining", str(max(0, math.floor(level + 1e-6)))),
                    ("reset", duration_text(full_s)),
                ):
                    found.append((f"x-ratelimit-{name}-{kind}".encode(), value.encode()))
        return found

    def _take_request(self, *, has_place: bool) -> None:
        most = self.limits.max_concurrent
        if not has_place and most is not None and self.num_running >= most:
            raise self._refusal("requests at the same time", most, BUSY_RETRY_S)
        if self.requests is not None:
            wait_s = self.requests.take(1, self._clock())
            if wait_s:
                raise self._refusal("requests per minute", self.limits.requests_per_minute, wait_s)

    def _refusal(self, what: str, limit: int | None, wait_s: float) -> HTTPError:
        """Count a refusal, and return its error; the ledger is locked."""
        self._ledger.add(KeyUsage(num_refused=1))
        message = (
            f"the key {self.name!r} may have {limit} {what}; try again in {duration_text(wait_s)}"
        )
        headers = retry_headers(wait_s, math.inf)  # it is exact
        return HTTPError(429, message, code="rate_limit_exceeded", headers=headers)

    def _bucket(self, limit: int | None, level: Level) -> TokenBucket | None:
        return None if limit is None else TokenBucket(limit, MINUTE_S, self._clock(), level)


class RunningRequest:
    """A request of an account while it runs, as a context.

    Args:
        account: Account of its key.
    """

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        self._account.begin()

    def __exit__(self, *_: object) -> None:
        self._account.end()


class TokenReservation:
    """Tokens that a request has reserved, and those that it has used.

    Args:
        account: Account that they were taken from.
        num_reserved: Number of tokens that were taken.
    """

    def __init__(self, account: Account, num_reserved: int) -> None:
        self._account = account
        self._num_reserved = num_reserved
        self._num_used = 0

    def use(self, num_tokens: int) -> None:
        """Count tokens; those beyond the reservation are charged now."""
        self._num_used += num_tokens
        excess = self._num_used - self._num_reserved
        if excess > 0:
            self._num_reserved = self._num_used
            self._account.charge(excess)

    def close(self) -> None:
        """Give back what was not used. May be called twice."""
        unused, self._num_reserved = self._num_reserved - self._num_used, self._num_used
        self._account.charge(-unused)


def account_of(scope: Scope) -> Account:
    """Return the account of a request that a guard has let in."""
    found: Account = scope["quire_account"]
    return found


def duration_text(seconds: float) -> str:
    """Return a time as OpenAI writes it in headers: `120ms`, `1.5s` or `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
