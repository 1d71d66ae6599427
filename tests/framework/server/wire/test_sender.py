"""The sender of a request is what the guard wrote into its scope."""

import time

from asgi_parts import scope_of

from quire.server.keys.account import Account
from quire.server.wire.sender import Sender


def test_a_sender_is_what_the_guard_found_out():
    account = Account("acme")
    scope = scope_of(
        "/",
        quire_arrival_s=12.5,
        quire_client="acme",
        quire_account=account,
        quire_request_id="r-1",
    )
    assert Sender.of(scope) == Sender(12.5, "acme", account, "r-1")
    assert Sender.of(scope).account is account


def test_a_sender_of_whom_nothing_is_known_sends_now():
    before_s = time.monotonic()
    sender = Sender()
    assert before_s <= sender.arrival_s <= time.monotonic()
    assert sender.client == ""
