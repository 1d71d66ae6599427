"""Facts about the sender of a request that the guard has found out, for the engine."""

import time

import msgspec
from starlette.types import Scope

from quire.server.keys.account import Account, account_of


class Sender(msgspec.Struct, frozen=True):
    """Who sent a request, and when.

    Attributes:
        arrival_s: Arrival of the request's head, by `time.monotonic` of this process.
        client: Identity for limits and fair shares: the name of a key, or an address.
        account: Account of its key, which has limits and usage.
        request_id: Id of the HTTP request, for logs; None: unknown.
    """

    arrival_s: float = msgspec.field(default_factory=time.monotonic)
    client: str = ""
    account: Account = msgspec.field(default_factory=lambda: Account("unlimited"))
    request_id: str | None = None

    @classmethod
    def of(cls, scope: Scope) -> "Sender":
        """Return the sender of a request that the guard has let through."""
        return cls(
            scope["quire_arrival_s"],
            scope["quire_client"],
            account_of(scope),
            scope["quire_request_id"],
        )
