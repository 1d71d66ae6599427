"""Stored responses: limits, owners, and the conversations that hold what they continue."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.server.keys.account import Account
from quire.server.routes.responses.response_store import ResponseStore
from quire.server.routes.responses.stored_response import ENTRY_BYTES, StoredResponse
from quire.server.wire.http_errors import HTTPError

ACCOUNTS = [Account("one"), Account("two")]
MAX_NUM, MAX_BYTES, TTL_S = 4, 8 * ENTRY_BYTES, 10.0


def stored(name, account=ACCOUNTS[0], previous=None, text="", events=None):
    body = msgspec.json.encode({"output": [{"text": text}]})
    made = StoredResponse(name, account, b'[{"text": "in"}]', previous, body)
    made.events = events
    return made


@pytest.fixture
def store():
    return ResponseStore(MAX_NUM, MAX_BYTES, TTL_S)


def is_found(store, response, account=None):
    try:
        return store.find(account or response.account, response.id) is response
    except HTTPError:
        return False


def test_the_oldest_makes_room_for_the_newest(store):
    made = [stored(str(i)) for i in range(MAX_NUM + 1)]
    for response in made:
        assert store.keep(response)
    assert [is_found(store, response) for response in made] == [False] + [True] * MAX_NUM


def test_the_bytes_are_limited_too(store):
    made = [stored(str(i), text="x" * 3 * ENTRY_BYTES) for i in range(2)]
    for response in made:
        assert store.keep(response)
    assert [is_found(store, response) for response in made] == [False, True]


def test_what_is_larger_than_the_store_removes_nothing(store):
    small = stored("small")
    assert store.keep(small)
    assert not store.keep(stored("large", text="x" * MAX_BYTES))
    assert is_found(store, small)


def test_another_account_finds_nothing(store):
    response = stored("a")
    store.keep(response)
    assert not is_found(store, response, ACCOUNTS[1])
    with pytest.raises(HTTPError) as failed:
        store.find(ACCOUNTS[1], "a")
    assert (failed.value.status, failed.value.name) == (404, "response_not_found")
    with pytest.raises(HTTPError) as failed:
        store.find(ACCOUNTS[1], "a", "previous_response_id")
    assert (failed.value.status, failed.value.name) == (400, "previous_response_not_found")


def test_a_conversation_is_whole_after_its_beginning_was_removed(store):
    first = stored("1", text="uno")
    second = stored("2", previous=first, text="due")
    for response in (first, second):
        store.keep(response)
    store.remove(first)
    assert second.items() == [{"text": t} for t in ("in", "uno", "in", "due")]
    assert second.input_of_all() == [{"text": t} for t in ("in", "uno", "in")]
    assert store.num_bytes == first.num_bytes + second.num_bytes
    store.remove(second)
    assert store.num_bytes == 0


def test_only_so_many_run_and_they_are_not_removed(store):
    running = [stored(str(i)) for i in range(MAX_NUM)]
    for response in running:
        store.begin(response)
    with pytest.raises(HTTPError) as failed:
        store.begin(stored("more"))
    assert failed.value.status == 429
    kept = stored("kept")
    store.keep(kept)
    assert not is_found(store, kept)
    assert all(is_found(store, response) for response in running)


def test_a_response_that_outgrows_the_store_is_not_stored(store):
    response = stored("a")
    store.begin(response)
    assert not store.end(response, b"x" * MAX_BYTES)
    assert not is_found(store, response)
    assert store.num_bytes == 0


def test_an_input_that_is_too_large_does_not_begin(store):
    with pytest.raises(HTTPError) as failed:
        store.begin(stored("a", text="x" * MAX_BYTES))
    assert failed.value.status == 413


def test_what_is_too_old_goes_without_any_request():
    now_s, calls = [0.0], []
    later = lambda delay_s, expire: calls.append((delay_s, expire))  # noqa: E731
    store = ResponseStore(MAX_NUM, MAX_BYTES, TTL_S, lambda: now_s[0], later)
    store.keep(stored("a"))
    now_s[0] = 4.0
    store.keep(stored("b"))
    ((delay_s, expire),) = calls
    assert delay_s == TTL_S
    now_s[0] = TTL_S
    expire()
    assert (store.num_responses, calls[1][0]) == (1, 4.0)
    now_s[0] += 4.0
    calls[1][1]()
    assert (store.num_responses, store.num_bytes, len(calls)) == (0, 0, 2)


class Machine(RuleBasedStateMachine):
    """A store beside a model of it: a list, oldest first, and the responses that run."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.store = ResponseStore(MAX_NUM, MAX_BYTES, TTL_S, lambda: self.now_s)
        self.kept = []  # (response, time)
        self.running = []
        self.num_made = 0

    def make(self, data, size):
        self.num_made += 1
        before = data.draw(st.sampled_from([None, *(response for response, _ in self.kept)]))
        account = data.draw(st.sampled_from(ACCOUNTS))
        return stored(str(self.num_made), account, before, "x" * size)

    def expire(self):
        self.kept = [(r, at_s) for r, at_s in self.kept if at_s + TTL_S > self.now_s]

    def held(self):
        """All that is reachable, each once."""
        roots = [response for response, _ in self.kept] + self.running
        return {turn for response in roots for turn in response.turns()}

    def make_room(self):
        while self.kept and (
            len(self.kept) + len(self.running) > MAX_NUM
            or sum(turn.num_bytes for turn in self.held()) > MAX_BYTES
        ):
            del self.kept[0]

    @rule(data=st.data(), size=st.integers(0, 3 * ENTRY_BYTES))
    def keep(self, data, size):
        response = self.make(data, size)
        was_kept = self.store.keep(response)
        self.expire()
        assert was_kept == (sum(t.num_bytes for t in response.turns()) <= MAX_BYTES)
        if was_kept:
            self.kept.append((response, self.now_s))
            self.make_room()

    @rule(data=st.data())
    def begin(self, data):
        response = self.make(data, 0)
        is_full = len(self.running) >= MAX_NUM
        is_large = sum(t.num_bytes for t in response.turns()) > MAX_BYTES
        if is_full or is_large:
            with pytest.raises(HTTPError) as failed:
                self.store.begin(response)
            assert failed.value.status == (413 if is_large else 429)
            return
        self.store.begin(response)
        self.running.append(response)
        self.make_room()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 2000))
    def add_event(self, data, size):
        self.store.add_event(data.draw(st.sampled_from(self.running)), b"x" * size)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 3 * ENTRY_BYTES))
    def end(self, data, size):
        response = data.draw(st.sampled_from(self.running))
        was_kept = self.store.end(response, b'{"output": []}' + b" " * size)
        self.running.remove(response)
        self.expire()
        if was_kept:
            self.kept.append((response, self.now_s))
            self.make_room()

    @rule(data=st.data())
    def remove(self, data):
        candidates = [response for response, _ in self.kept] + self.running
        if candidates:
            response = data.draw(st.sampled_from(candidates))
            self.store.remove(response)
            self.kept = [pair for pair in self.kept if pair[0] is not response]
            self.running = [each for each in self.running if each is not response]

    @rule(seconds=st.floats(0.1, TTL_S))
    def wait(self, seconds):
        self.now_s += seconds
        left_s = self.store.expire()
        self.expire()
        assert left_s == (self.kept[0][1] + TTL_S - self.now_s if self.kept else None)

    @invariant()
    def counts_and_finds_what_the_model_does(self):
        assert self.store.num_bytes == sum(turn.num_bytes for turn in self.held())
        assert self.store.num_responses == len(self.kept) + len(self.running)
        for response in [*(each for each, _ in self.kept), *self.running]:
            assert is_found(self.store, response)
            other = ACCOUNTS[1 - ACCOUNTS.index(response.account)]
            assert not is_found(self.store, response, other)


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStore = Machine.TestCase
