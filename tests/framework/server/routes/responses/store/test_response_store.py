"""Stored responses: limits, owners, and the conversations that hold what they continue."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.server.keys.account import Account
from quire.server.routes.responses.store.event_log import EVENT_BYTES, EventLog
from quire.server.routes.responses.store.response_store import ResponseStore
from quire.server.routes.responses.store.stored_response import (
    END_BYTES,
    ENTRY_BYTES,
    StoredResponse,
)
from quire.server.wire.http_errors import HTTPError

ACCOUNTS = [Account("one"), Account("two")]
MAX_NUM, TTL_S = 6, 10.0
MAX_BYTES = 16 * ENTRY_BYTES
LAST = b"{}"


def stored(name, account=ACCOUNTS[0], previous=None, text="", has_events=False):
    body = msgspec.json.encode({"output": [{"text": text}]})
    made = StoredResponse(name, account, b'[{"text": "in"}]', previous, body)
    made.events = EventLog() if has_events else None
    return made


@pytest.fixture
def store():
    return ResponseStore(MAX_NUM, MAX_BYTES, TTL_S)


def is_found(store, response, account=None):
    try:
        return store.find(account or response.account, response.id) is response
    except HTTPError:
        return False


def refusal(call, *args):
    with pytest.raises(HTTPError) as failed:
        call(*args)
    return failed.value


def test_the_oldest_makes_room_for_the_newest(store):
    made = [stored(str(i)) for i in range(MAX_NUM + 1)]
    for response in made:
        assert store.keep(response)
    assert [is_found(store, response) for response in made] == [False] + [True] * MAX_NUM


def test_the_bytes_are_limited_too(store):
    made = [stored(str(i), text="x" * (MAX_BYTES // 2)) for i in range(2)]
    for response in made:
        assert store.keep(response)
    assert [is_found(store, response) for response in made] == [False, True]


def test_what_is_larger_than_the_store_removes_nothing(store):
    small = stored("small")
    assert store.keep(small)
    assert not store.keep(stored("large", text="x" * MAX_BYTES))
    assert is_found(store, small)


def test_what_has_no_room_beside_those_that_run_removes_nothing(store):
    small = stored("small")
    store.keep(small)
    store.begin(stored("runs", text="x" * (MAX_BYTES // 2)))
    assert not store.keep(stored("large", text="x" * (MAX_BYTES // 2)))
    assert is_found(store, small)


def test_the_key_that_holds_most_makes_room_for_others(store):
    mine = [stored(str(i)) for i in range(2)]
    others = [stored(str(i), ACCOUNTS[1]) for i in range(MAX_NUM)]
    for response in [*mine, *others]:
        assert store.keep(response)
    assert all(is_found(store, response) for response in mine)
    assert [is_found(store, response) for response in others] == [False, False] + [True] * 4


def test_another_account_finds_nothing(store):
    response = stored("a")
    store.keep(response)
    assert not is_found(store, response, ACCOUNTS[1])
    error = refusal(store.find, ACCOUNTS[1], "a")
    assert (error.status, error.name) == (404, "response_not_found")
    error = refusal(store.find, ACCOUNTS[1], "a", "previous_response_id")
    assert (error.status, error.name) == (400, "previous_response_not_found")


def test_an_id_is_taken_while_a_response_of_the_key_has_it(store):
    store.begin(stored("a"))
    store.keep(stored("b"))
    for name, code in (("a", "response_in_progress"), ("b", "response_exists")):
        for call, args in ((store.check_id, (ACCOUNTS[0], name)), (store.begin, (stored(name),))):
            error = refusal(call, *args)
            assert (error.status, error.name, error.param) == (409, code, "request_id")
        assert not store.keep(stored(name))
        store.check_id(ACCOUNTS[1], name)
        assert store.keep(stored(name, ACCOUNTS[1]))


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


def test_a_key_generates_as_much_as_it_leaves_to_others_and_nothing_removes_that(store):
    def begin_all(account, names):
        for made in (stored(name, account) for name in names):
            error = None
            try:
                store.begin(made)
            except HTTPError as refused:
                error = refused
            if error is None:
                running.append(made)
            else:
                assert (error.status, error.headers["retry-after"]) == (429, "1")

    running = []
    begin_all(ACCOUNTS[0], "abcdef")
    assert len(running) == MAX_NUM // 2
    begin_all(ACCOUNTS[1], "abcdef")
    assert len(running) == MAX_NUM // 2 + 1
    for name in "ghijkl":
        assert store.keep(stored(name, ACCOUNTS[1]))
    assert all(is_found(store, response) for response in running)


def test_without_keys_all_may_be_generated_and_then_nothing_else_is_stored(store):
    everyone = Account("open", has_key=False)
    for i in range(MAX_NUM):
        store.begin(stored(str(i), everyone))
    assert refusal(store.begin, stored("more", everyone)).status == 429
    assert not store.keep(stored("kept", everyone))


def test_what_is_generated_has_a_limit_of_bytes_together(store):
    everyone = Account("open", has_key=False)
    text = "x" * (MAX_BYTES // 3)
    store.begin(stored("a", everyone, text=text))
    store.begin(stored("b", everyone, text=text))
    assert refusal(store.begin, stored("c", everyone, text=text)).status == 429


def test_the_events_of_a_key_take_half_of_all_at_most(store):
    made = [stored(name, has_events=True) for name in "ab"]
    for response in made:
        store.begin(response)
    event = b"x" * (MAX_BYTES // 6)
    store.add_event(made[0], event)
    error = refusal(store.add_event, made[0], event)
    assert (error.status, error.name) == (503, "response_too_large")
    store.remove(made[1])
    store.add_event(made[0], event)  # it is the only one now


def test_events_make_room_for_themselves_until_there_is_none(store):
    kept, running = stored("kept"), stored("runs", has_events=True)
    store.keep(kept)
    store.begin(running)
    while is_found(store, kept):
        store.add_event(running, b"x" * 500)
    while store.num_bytes + 500 + EVENT_BYTES <= MAX_BYTES:
        store.add_event(running, b"x" * 500)
    assert refusal(store.add_event, running, b"x" * 500).status == 503
    assert is_found(store, running)


def test_a_response_that_outgrows_the_store_ends_with_less(store):
    response = stored("a", has_events=True)
    store.begin(response)
    store.add_event(response, b"x" * ENTRY_BYTES)
    assert not store.end(response, b"x" * MAX_BYTES, LAST)
    assert response.is_running
    log = response.events
    assert store.end(response, b"x" * (MAX_BYTES - ENTRY_BYTES - 500), LAST)
    assert is_found(store, response)
    assert response.events is None
    assert log.encoded(1, b"") == LAST  # for those who read it
    assert store.num_bytes <= MAX_BYTES


def test_a_response_that_was_removed_ends_for_its_readers(store):
    response = stored("a", has_events=True)
    store.begin(response)
    store.remove(response)
    store.add_event(response, b"[]")
    assert store.end(response, b"{}", LAST)
    assert len(response.events) == 2
    assert (store.num_bytes, store.num_responses) == (0, 0)


def test_an_input_that_is_too_large_does_not_begin(store):
    assert refusal(store.begin, stored("a", text="x" * MAX_BYTES)).status == 413


def test_the_responses_of_a_key_that_is_gone_go_with_the_next_request(store):
    gone = Account("gone")
    store.keep(stored("a", gone))
    store.keep(stored("b"))
    gone.is_removed = True
    assert is_found(store, stored("x")) is False
    assert store.num_responses == 1


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
    """A store beside what is known to be in it: the responses that run, and those that were kept.

    Which of those make room is the store's choice; it may take the oldest of each key alone, and
    none as long as all have room.
    """

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.store = ResponseStore(MAX_NUM, MAX_BYTES, TTL_S, lambda: self.now_s)
        self.kept = []  # (response, time)
        self.running = []
        self.num_made = 0

    def make(self, data, size, has_events=False):
        self.num_made += 1
        account = data.draw(st.sampled_from(ACCOUNTS))
        own = [response for response, _ in self.kept if response.account is account]
        before = data.draw(st.sampled_from([None, *own]))
        return stored(str(self.num_made), account, before, "x" * size, has_events)

    def has_room(self, *more):
        """Whether what runs, and more, is within the limits."""
        held = turns_of([*self.running, *more])
        return len(self.running) + len(more) <= MAX_NUM and bytes_of(held) <= MAX_BYTES

    def note_removed(self, newest=None):
        """Forget what made room; check that it was the oldest, and that it had to."""
        self.kept = [(r, at_s) for r, at_s in self.kept if at_s + TTL_S > self.now_s]
        found = [is_found(self.store, response) for response, _ in self.kept]
        for account in ACCOUNTS:
            own = [
                is_in
                for (r, _), is_in in zip(self.kept, found, strict=True)
                if r.account is account
            ]
            assert own == sorted(own)
        everything = [r for r, _ in self.kept] + self.running
        had_room = len(everything) <= MAX_NUM and bytes_of(turns_of(everything)) <= MAX_BYTES
        assert all(found) or not had_room
        self.kept = [pair for pair, is_in in zip(self.kept, found, strict=True) if is_in]
        assert newest is None or is_found(self.store, newest)

    @rule(data=st.data(), size=st.integers(0, 6 * ENTRY_BYTES))
    def keep(self, data, size):
        response = self.make(data, size)
        was_kept = self.store.keep(response)
        assert was_kept == self.has_room(response)
        if was_kept:
            self.kept.append((response, self.now_s))
        self.note_removed(response if was_kept else None)

    @rule(data=st.data(), size=st.integers(0, 6 * ENTRY_BYTES), has_events=st.booleans())
    def begin(self, data, size, has_events):
        response = self.make(data, size, has_events)
        response.is_running = True  # for its size
        own = [each for each in self.running if each.account is response.account]
        of_key = bytes_of(turns_of([*own, response]))
        num_bytes = bytes_of(turns_of([*self.running, response]))
        is_large = bytes_of(turns_of([response])) > MAX_BYTES
        is_fair = not own or (
            len(own) + 1 <= MAX_NUM - len(self.running) - 1 and of_key <= MAX_BYTES - num_bytes
        )
        response.is_running = False
        has_room = len(self.running) < MAX_NUM and num_bytes <= MAX_BYTES
        if is_large or not is_fair or not has_room:
            with pytest.raises(HTTPError) as failed:
                self.store.begin(response)
            assert failed.value.status == (413 if is_large else 429)
        else:
            self.store.begin(response)
            self.running.append(response)
        self.note_removed()

    @precondition(lambda self: any(r.events is not None for r in self.running))
    @rule(data=st.data(), size=st.integers(0, 2000))
    def add_event(self, data, size):
        response = data.draw(st.sampled_from([r for r in self.running if r.events is not None]))
        own = [each for each in self.running if each.account is response.account]
        size_of_event = size + EVENT_BYTES
        is_full = bytes_of(turns_of(self.running)) + size_of_event > MAX_BYTES
        has_share = len(own) == 1 or bytes_of(turns_of(own)) + size_of_event <= MAX_BYTES // 2
        if is_full or not has_share:
            with pytest.raises(HTTPError):
                self.store.add_event(response, b"x" * size)
        else:
            self.store.add_event(response, b"x" * size)
        self.note_removed()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 10 * ENTRY_BYTES))
    def end(self, data, size):
        response = data.draw(st.sampled_from(self.running))
        was_kept = self.store.end(response, b'{"output": []}' + b" " * size, LAST)
        if not was_kept:  # as it was, and without an output there is room
            assert size > END_BYTES
            assert self.store.end(response, b'{"output": []}', LAST)
        self.running.remove(response)
        self.kept.append((response, self.now_s))
        self.note_removed(response)

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
        self.note_removed()
        assert left_s == (self.kept[0][1] + TTL_S - self.now_s if self.kept else None)

    @invariant()
    def the_limits_hold_and_what_is_known_is_found(self):
        known = [*(each for each, _ in self.kept), *self.running]
        assert self.store.num_bytes == bytes_of(turns_of(known)) <= MAX_BYTES
        assert self.store.num_responses == len(known) <= MAX_NUM
        for response in known:
            assert is_found(self.store, response)
            other = ACCOUNTS[1 - ACCOUNTS.index(response.account)]
            assert not is_found(self.store, response, other)


def turns_of(responses):
    """All that is reachable, each once."""
    return {turn for response in responses for turn in response.turns()}


def bytes_of(turns):
    return sum(turn.num_bytes for turn in turns)


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestStore = Machine.TestCase
