"""Turns that responses hold: each counts once, until nothing holds it."""

from quire.server.keys.account import Account
from quire.server.routes.responses.store.held_turns import HeldTurns
from quire.server.routes.responses.store.stored_response import StoredResponse

ONE = Account("one")


def turn(name, previous=None):
    return StoredResponse(name, ONE, b"[]", previous, b"{}")


def test_a_turn_that_two_responses_continue_counts_once():
    first = turn("1")
    second, third = turn("2", first), turn("3", first)
    size = first.num_bytes
    held = HeldTurns()
    assert held.added_by(second) == 2 * size
    held.hold(second)
    assert (held.num_bytes, held.added_by(third)) == (2 * size, size)
    held.hold(third)
    held.hold(first)
    assert held.num_bytes == 3 * size
    held.drop(second)
    held.drop(first)
    assert held.num_bytes == 2 * size  # the third holds the first
    held.drop(third)
    assert held.num_bytes == 0
