"""A KV store beside the scheduler that raises or returns nonsense is called no more."""

import pytest

from quire.engine.kv_store.guarded_store import GuardedStore
from quire.interfaces.kv_transfer import CrossGroupBlock, KVLookup, KVStoreScheduler

COLUMNS = [CrossGroupBlock(b"name", (1,))]


class Noted(KVStoreScheduler):
    """Records its calls; returns the given results, or raises them."""

    def __init__(self, **results):
        self.results = {"lookup": KVLookup(2), "start_save": 1, "plan_step": b"orders", **results}
        self.calls = []

    def _say(self, name, *arguments):
        self.calls.append((name, *arguments))
        result = self.results.get(name)
        if isinstance(result, Exception):
            raise result
        return result

    def lookup(self, request_id, block_hashes):
        return self._say("lookup", request_id, block_hashes)

    def start_load(self, transfer_id, cross_blocks):
        self._say("start_load", transfer_id, cross_blocks)

    def start_save(self, transfer_id, cross_blocks):
        return self._say("start_save", transfer_id, cross_blocks)

    def plan_step(self):
        return self._say("plan_step")

    def finish(self, transfer_id, *, has_failed):
        self._say("finish", transfer_id, has_failed)

    def reset(self):
        self._say("reset")

    def forget_request(self, request_id):
        self._say("forget_request", request_id)

    def shutdown(self):
        self._say("shutdown")


def guarded(**results):
    store, switched = Noted(**results), []
    return GuardedStore(store, "noted", lambda: switched.append("off")), store, switched


def ask_all(guard):
    return [
        guard.lookup("a", [b"1", b"2", b"3"]),
        guard.start_load(1, COLUMNS),
        guard.start_save(2, COLUMNS),
        guard.plan_step(),
        guard.finish(1, has_failed=False),
        guard.finish(2, has_failed=True),
        guard.reset(),
        guard.forget_request("a"),
    ]


def test_calls_and_results_pass_as_they_are():
    guard, store, switched = guarded()
    assert ask_all(guard) == [2, None, 1, b"orders", None, None, None, None]
    assert store.calls == [
        ("lookup", "a", [b"1", b"2", b"3"]),
        ("start_load", 1, COLUMNS),
        ("start_save", 2, COLUMNS),
        ("plan_step",),
        ("finish", 1, False),
        ("finish", 2, True),
        ("reset",),
        ("forget_request", "a"),
    ]
    assert (switched, guard.is_off) == ([], False)


def test_a_store_that_is_off_is_asked_nothing_and_has_nothing():
    guard, store, switched = guarded()
    guard.switch_off("failed")
    guard.switch_off("failed")
    assert switched == ["off"], "once"
    assert ask_all(guard) == [0, None, 0, b"", None, None, None, None]
    assert store.calls == []
    guard.shutdown()
    assert store.calls == [("shutdown",)], "it releases what it has"


@pytest.mark.parametrize(
    "name", ["lookup", "start_load", "start_save", "plan_step", "finish", "reset", "forget_request"]
)
def test_one_that_raises_is_switched_off(name, caplog):
    guard, store, switched = guarded(**{name: OSError("gone")})
    ask_all(guard)
    assert (switched, guard.is_off) == (["off"], True)
    assert store.calls[-1][0] == name, "it was asked nothing after that"
    assert "noted failed and is switched off" in caplog.text
    assert "OSError: gone" in caplog.text


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("lookup", None),
        ("lookup", 2),
        ("lookup", KVLookup(-1)),
        ("lookup", KVLookup(2.0)),
        ("start_save", -1),
        ("start_save", None),
        ("start_save", "1"),
        ("plan_step", "text"),
        ("plan_step", None),
    ],
)
def test_a_store_that_returns_nonsense_is_switched_off(name, result):
    guard, _, switched = guarded(**{name: result})
    ask_all(guard)
    assert switched == ["off"]


@pytest.mark.parametrize(
    ("result", "num_blocks"),
    [(KVLookup(0), 0), (KVLookup(3), 3), (KVLookup(4), 3), (KVLookup(3, is_pending=True), None)],
)
def test_an_offer_is_what_was_asked_for_at_most(result, num_blocks):
    guard, _, switched = guarded(lookup=result)
    assert guard.lookup("a", [b"1", b"2", b"3"]) == num_blocks
    assert switched == []


def test_one_that_cannot_be_shut_down_is_logged(caplog):
    guard, _, _ = guarded(shutdown=ValueError("no"))
    guard.shutdown()
    assert "noted could not be shut down" in caplog.text
