"""All accounts of a server: who a request is of, by the key in its headers."""

import asyncio
import time
from collections.abc import Callable

from starlette.types import Scope

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.keys.account import Account, Clock
from quire.server.keys.api_key import ApiKey, digest_of
from quire.server.keys.cache_salts import CacheSalts
from quire.server.keys.key_files import KeyFiles
from quire.server.keys.key_ring import KeyRing
from quire.server.keys.ledger import Ledger, LocalLedger
from quire.server.wire.headers import header_values
from quire.server.wire.http_errors import HTTPError

POLL_S = 1.0  # between two looks at the key files
OPEN = "open"  # account of requests to a server without keys


class Accounts:
    """Accounts of keys; used in one event loop.

    Args:
        ring: All keys.
        shares_cache: Whether all keys share the prefix cache.
        clock: Clock of the limits, in seconds.
        ledgers: Returns where an account counts, by a digest of its key and name; None: each has
            a ledger of its own in this process.
        salt_secret: Secret of the server for the salts of keys, if it has one already.

    Attributes:
        with_keys: The accounts of the API keys; replaced as a whole, so any thread may read it.
    """

    def __init__(
        self,
        ring: KeyRing | None = None,
        *,
        shares_cache: bool = False,
        clock: Clock = time.monotonic,
        ledgers: Callable[[bytes], Ledger] | None = None,
        salt_secret: bytes | None = None,
    ) -> None:
        self._ledgers = ledgers or _own_ledger
        self._shares_cache = shares_cache
        self._salts = None if salt_secret is None else CacheSalts((), salt_secret)
        self._clock = clock
        self._files: KeyFiles | None = None
        open_ledger = self._ledgers(digest_of(b"without a key"))
        self._open = Account(OPEN, has_key=False, clock=clock, ledger=open_ledger)
        strangers = self._ledgers(digest_of(b"without a valid key"))
        self._strangers = Account("strangers", has_key=False, clock=clock, ledger=strangers)
        self._accounts: dict[bytes, Account] = {}  # by the digests of their keys
        self._digests: set[bytes] = set()  # of all API keys since the start
        self._has_priorities = True  # until `check` says otherwise
        self.replace(ring or KeyRing())

    @classmethod
    def load(
        cls,
        settings: ServerSettings,
        ledgers: Callable[[bytes], Ledger] | None = None,
        salt_secret: bytes | None = None,
    ) -> "Accounts":
        """Return the accounts of the keys that the settings have.

        Args:
            settings: Settings of the server.
            ledgers: Returns where an account counts; None: in this process.
            salt_secret: Secret of the server for the salts of keys, if it has one already.

        Raises:
            SettingsError: A key or a key file is invalid.
        """
        files = KeyFiles(settings)
        accounts = cls(
            files.read(),
            shares_cache=settings.share_prefix_cache,
            ledgers=ledgers,
            salt_secret=salt_secret,
        )
        accounts._files = files
        return accounts

    async def follow_files(self, poll_s: float = POLL_S) -> None:
        """Replace the keys whenever their files change; returns at once if there are no files."""
        while self._files is not None and self._files.paths:
            await asyncio.sleep(poll_s)
            ring = await asyncio.to_thread(self._files.read_changed, self._check)
            if ring is not None:
                self.replace(ring)

    @property
    def salt_secret(self) -> bytes | None:
        """Secret of the server for the salts of keys; None: keys share the prefix cache."""
        return None if self._salts is None else self._salts.secret

    @property
    def num_unauthorized(self) -> int:
        """Number of requests without a valid key."""
        return self._strangers.usage.num_refused

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key."""
        return bool(self._ring.api)

    @property
    def has_admin(self) -> bool:
        """Whether there are control routes."""
        return bool(self._ring.admin)

    def of_keys(self) -> list[Account]:
        """Return the accounts of the API keys, or the one of all requests if there are no keys."""
        return self.with_keys or [self._open]

    def check(self, *, has_priorities: bool) -> None:
        """Check that the engine can do what the limits of the keys say, now and when they change.

        Raises:
            SettingsError: A key has a priority, and the scheduling policy reads none.
        """
        self._has_priorities = has_priorities
        self._check(self._ring)

    def replace(self, ring: KeyRing) -> None:
        """Use other keys from now on; the account of a key that stays keeps its usage."""
        self._ring = ring
        keys = (*ring.api, *ring.admin)
        self._digests |= {key.digest for key in ring.api}
        if self._salts is None and len(self._digests) > 1 and not self._shares_cache:
            self._salts = CacheSalts(keys)
        accounts = {key.digest: self._account(key) for key in keys}
        for account in {*self._accounts.values()} - {*accounts.values()}:
            account.is_removed = True
        self._accounts = accounts
        self.with_keys = [self._accounts[key.digest] for key in ring.api]
        self._admins = frozenset(key.name for key in ring.admin)

    def open(self, scope: Scope) -> None:
        """Set `quire_account`, `quire_client` and `quire_is_admin` of a request without a key."""
        client = scope.get("client")
        scope["quire_client"] = str(client[0]) if client else "local"  # a Unix socket has none
        scope["quire_account"] = self._open
        scope["quire_is_admin"] = False

    def identify(self, scope: Scope) -> None:
        """Set what `open` sets by the key of the request.

        Raises:
            HTTPError: The request needs a key, and has none that is valid.
        """
        key = self._key_of(scope) if self._ring.has_keys else None
        if key is not None:
            scope["quire_client"] = key.name
            scope["quire_account"] = self._accounts[key.digest]
            scope["quire_is_admin"] = key.name in self._admins
        elif self._ring.api:
            self._strangers.count_refusal()
            raise missing_key()

    def _check(self, ring: KeyRing) -> None:
        for key in ring.api:
            if key.limits.priority and not self._has_priorities:
                raise SettingsError(
                    f"the key {key.name!r} has a priority, which the scheduling policy does not "
                    "read; set --scheduling-policy priority, or leave it out"
                )

    def _key_of(self, scope: Scope) -> ApiKey | None:
        """Return the key of a request; it may be in two headers, and once in each."""
        bearer, plain = header_values(scope, b"authorization"), header_values(scope, b"x-api-key")
        texts = {*map(_bearer, bearer), *(value.strip() for value in plain)}
        is_clear = len(texts) == 1 and len(bearer) < 2 and len(plain) < 2
        key = self._ring.find(next(iter(texts), "").encode("latin-1"))
        return key if is_clear else None

    def _account(self, key: ApiKey) -> Account:
        account = self._accounts.get(key.digest)
        if account is None or account.name != key.name:
            ledger = self._ledgers(digest_of(key.digest + key.name.encode()))
            account = Account(key.name, clock=self._clock, ledger=ledger)
        if account.limits != key.limits:
            account.set_limits(key.limits)
        account.cache_salt = None if self._salts is None else self._salts.of(key)
        return account


def _bearer(value: str) -> str:
    """Return the key of an Authorization header; empty if that has another scheme."""
    scheme, _, text = value.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _own_ledger(digest: bytes) -> Ledger:
    del digest
    return LocalLedger()


def missing_key() -> HTTPError:
    """Return the error of a request without a valid key."""
    return HTTPError(
        401,
        "this server requires a key: send the header 'Authorization: Bearer KEY' or "
        "'x-api-key: KEY'",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
