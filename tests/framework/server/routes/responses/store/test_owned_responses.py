"""The stored responses of one key: what is found, and what those that run hold."""

from quire.server.keys.account import Account
from quire.server.routes.responses.store.event_log import EventLog, size_of
from quire.server.routes.responses.store.owned_responses import OwnedResponses
from quire.server.routes.responses.store.stored_response import StoredResponse

ONE = Account("one")


def made(name, previous=None):
    return StoredResponse(name, ONE, b"[]", previous, b"{}")


def test_what_runs_counts_apart_and_in_all():
    owned = OwnedResponses()
    kept, runs = made("kept"), made("runs")
    runs.events = EventLog()
    size = kept.num_bytes
    owned.keep(kept)
    owned.begin(runs)
    assert (owned.num, owned.num_bytes, owned.running_bytes) == (2, 2 * size, size)
    owned.add_event(runs, b"[]")
    assert owned.running_bytes == size + size_of(b"[]")
    assert (owned.find("kept"), owned.find("runs"), owned.find("x")) == (kept, runs, None)
    assert owned.remove(runs)
    assert not owned.remove(runs)
    assert (owned.num, owned.num_bytes, owned.running_bytes) == (1, size, 0)


def test_what_runs_shares_what_it_continues():
    owned = OwnedResponses()
    first = made("1")
    owned.begin(made("2", first))
    assert owned.added_to_running(made("3", first)) == first.num_bytes
