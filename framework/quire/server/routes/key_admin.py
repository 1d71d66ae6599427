"""GET /admin/keys and /admin/usage: names, limits and usage of the keys, never a key."""

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.http.json_response import json_response
from quire.server.keys.account import Account
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import KeyLimits
from quire.server.keys.ledger import KeyUsage


class KeyCard(msgspec.Struct):
    """One key: its name, and its limits, of which None is no limit."""

    name: str
    limits: KeyLimits
    num_running: int


class KeyList(msgspec.Struct):
    """The list of keys."""

    data: list[KeyCard]
    object: Literal["list"] = "list"


class UsageCard(msgspec.Struct):
    """Usage of one key since the start of the server."""

    name: str
    usage: KeyUsage


class UsageList(msgspec.Struct):
    """The usage by key, and the number of requests without a valid key."""

    data: list[UsageCard]
    num_unauthorized: int
    object: Literal["list"] = "list"


class AccountRoutes:
    """Routes of the keys; an admin key is needed.

    Args:
        accounts: Accounts of the keys.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    async def keys(self, request: Request) -> Response:
        """Return the names and the limits of the API keys."""
        del request
        return json_response(KeyList([_card(each) for each in self._accounts.of_keys()]))

    async def usage(self, request: Request) -> Response:
        """Return the usage of each API key since the start."""
        del request
        found = [UsageCard(each.name, each.usage) for each in self._accounts.of_keys()]
        return json_response(UsageList(found, self._accounts.num_unauthorized))


def _card(account: Account) -> KeyCard:
    return KeyCard(account.name, account.limits, account.num_running)
