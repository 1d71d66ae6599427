"""The matchers of a process, in this one: effects and results of a turn."""

import itertools
import mmap
import socket
import threading
from types import SimpleNamespace

import msgspec
import pytest

from quire.engine.grammar import matcher_server
from quire.engine.grammar.grammar_wire import (
    RUNNING,
    Accept,
    Drop,
    Failure,
    Fill,
    LoadGrammar,
    Sendable,
    Start,
    Turn,
    TurnDone,
    UnloadGrammar,
    receive,
    send,
)
from quire.engine.grammar.matcher_server import SLOW_S, MatcherServer, failure_of
from quire.engine.grammar.shared_masks import SharedMasks
from quire.errors import GrammarError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)


class Rising(CompiledGrammar, Matcher):
    """Each token is larger than the one before; 9 is the last, and 7 a fault of the backend."""

    def __init__(self):
        self.taken = []

    def matcher(self):
        return Rising()

    def accept(self, token_id):
        if token_id == 7:
            raise RuntimeError("seven")
        if token_id == 13:
            raise MemoryError
        is_right = not self.taken or token_id > self.taken[-1]
        self.taken += [token_id] * is_right
        return is_right

    def fill_bitmask(self, words):
        assert (words.format, len(words)) == ("i", 1), "a mask is a view of int32 words"
        words[0] = len(self.taken)

    def rollback(self, num_tokens):
        del self.taken[len(self.taken) - num_tokens :]

    def is_finished(self):
        return self.taken[-1:] == [9]


class Loader(StructuredOutputBackend):
    """Loads grammars; compiles none."""

    @classmethod
    def check(cls, params):
        raise GrammarError("only loads")

    def compile(self, params):
        raise GrammarError("only loads")

    def load(self, packed):
        if packed != b"rising":
            raise GrammarError("not packed by this backend")
        return Rising()


RISING = Sendable("loader", b"rising")


@pytest.fixture
def shared(masks):
    backends = {"loader": Loader(Vocabulary({}, (0,), 1))}
    server = MatcherServer(backends, masks, 4, is_shared=True)
    yield server
    server._masks.release()


@pytest.fixture
def masks():
    with mmap.mmap(-1, 3 * 4 + RUNNING.size) as masks:
        yield masks


@pytest.fixture
def owner(masks):
    owner = MatcherServer({}, masks, 4, is_shared=False)
    owner.add(1, Rising())
    ours, theirs = socket.socketpair()

    def serve():
        try:
            owner.serve(theirs)
        except EOFError:
            owner._masks.release()

    thread = threading.Thread(target=serve)
    thread.start()

    def turn(*operations):
        send(ours, Turn(list(operations)))
        return receive(ours, TurnDone)

    owner.turn = turn
    with ours, theirs:
        yield owner
        ours.close()
        thread.join()


def test_each_matcher_fills_its_own_row(owner, masks):
    done = owner.turn(
        Start(1, 1), Start(2, 1), Accept(1, [3, 9]), Accept(2, [5]), Fill(2, 0), Fill(1, 2)
    )
    assert done == TurnDone({})
    assert (masks[0], masks[4], masks[8]) == (1, 0, 2)
    owner.turn(Accept(2, [6, 8]), Fill(2, 1))
    assert masks[4] == 3


def test_the_first_token_that_is_refused_is_named_and_nothing_follows_it(owner, masks):
    done = owner.turn(Start(1, 1), Accept(1, [5, 4, 3]), Accept(1, [2]), Fill(1, 0))
    assert done.failed.keys() == {1}
    assert done.failed[1].message == "the grammar does not allow token 4 here"
    assert done.failed[1].is_for_client
    assert masks[0] == 0, "no mask is filled for it"


def test_a_fault_ends_its_own_matcher_and_is_for_the_log(owner, masks):
    done = owner.turn(
        Start(1, 1), Start(2, 1), Accept(1, [7]), Accept(2, [3]), Fill(1, 0), Fill(2, 1)
    )
    assert done.failed.keys() == {1}
    assert "RuntimeError: seven" in done.failed[1].message
    assert not done.failed[1].is_for_client
    assert masks[4] == 1


def test_a_dropped_matcher_is_gone_and_may_be_dropped_again(owner):
    owner.turn(Start(1, 1), Start(2, 1))
    assert owner.turn(Drop(1), Drop(1)) == TurnDone({})
    assert owner._matchers.keys() == {2}


def test_each_grammar_of_a_shared_process_has_its_matchers(shared, masks):
    loads = [LoadGrammar(1, RISING), LoadGrammar(2, RISING)]
    turn = Turn([*loads, Start(1, 1), Start(2, 2), Accept(2, [4]), Fill(1, 0), Fill(2, 1)])
    assert shared.take_turn(turn) == TurnDone({})
    assert (masks[0], masks[4]) == (0, 1)
    assert shared.take_turn(Turn([UnloadGrammar(1), Fill(2, 2)])) == TurnDone({})
    assert masks[8] == 1
    assert shared._matchers.keys() == {2}, "a matcher does not outlive its grammar"


def test_a_refused_token_fails_its_request_in_a_shared_process_too(shared):
    done = shared.take_turn(Turn([LoadGrammar(1, RISING), Start(1, 1), Accept(1, [5, 4])]))
    assert done.failed[1].message == "the grammar does not allow token 4 here"


def test_a_fault_in_a_shared_process_ends_its_own_matcher(shared, masks):
    loads = [LoadGrammar(1, RISING), LoadGrammar(2, RISING), Start(1, 1), Start(2, 2), Start(3, 1)]
    faulty = [Accept(1, [7]), Accept(2, [3]), Accept(3, [3]), Fill(3, 0), Fill(2, 1)]
    done = shared.take_turn(Turn([*loads, *faulty]))
    assert done.failed.keys() == {1}
    assert "RuntimeError: seven" in done.failed[1].message
    assert (masks[0], masks[4]) == (1, 1)


def test_a_grammar_that_cannot_be_loaded_fails_its_matchers(shared):
    large = Sendable("loader", b"falling")
    done = shared.take_turn(Turn([LoadGrammar(1, large), Start(1, 1), Fill(1, 0)]))
    assert done == TurnDone({1: Failure("not packed by this backend")})


@pytest.fixture
def slow_operations(monkeypatch):
    """Let each operation take 0.2 s more than a fast one; return a clock that is set by hand."""
    cpu_s = itertools.count(step=SLOW_S + 0.2)
    clock = SimpleNamespace(now_s=matcher_server.time.monotonic())
    monkeypatch.setattr(matcher_server.time, "thread_time", lambda: next(cpu_s))
    monkeypatch.setattr(matcher_server.time, "monotonic", lambda: clock.now_s)
    return clock


def test_a_grammar_that_is_slow_for_too_long_fails(shared, slow_operations):
    shared.take_turn(Turn([LoadGrammar(1, RISING)]))
    tokens = [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14]  # time for each of them
    turn = Turn([Start(1, 1), Fill(1, 0), Accept(1, tokens), Fill(1, 0)])
    done = shared.take_turn(turn)
    assert "takes too long to follow" in done.failed[1].message
    assert done.failed[1].is_for_client
    assert done.failed[1].is_slow


def test_slow_matchers_of_one_grammar_share_its_time_and_others_keep_theirs(
    shared, masks, slow_operations
):
    shared.take_turn(Turn([LoadGrammar(1, RISING), LoadGrammar(2, RISING)]))
    starts = [Start(number, 1) for number in (1, 2, 3, 4, 5)]
    done = shared.take_turn(Turn([*starts, Accept(5, [3]), Fill(5, 0), Start(6, 2), Fill(6, 1)]))
    assert done.failed.keys() == {3, 4, 5}, "0.5 s are over with the third"
    assert masks[0] == 0, "no other operation of the grammar is executed"
    assert 5 not in shared._matchers
    assert shared.take_turn(Turn([Drop(6), Start(7, 1)])).failed.keys() == {7}


def test_slow_time_of_a_grammar_is_forgotten_by_half_every_ten_seconds(shared, slow_operations):
    shared.take_turn(Turn([LoadGrammar(1, RISING)]))
    assert shared.take_turn(Turn([Start(1, 1), Start(2, 1)])) == TurnDone({})
    slow_operations.now_s += 10
    assert shared.take_turn(Turn([Fill(1, 0)])) == TurnDone({}), "0.2 s and 0.2 s"
    assert shared.take_turn(Turn([Fill(1, 0)])).failed.keys() == {1}
    assert shared.take_turn(Turn([UnloadGrammar(1), LoadGrammar(1, RISING), Start(3, 1)])) == (
        TurnDone({})
    ), "a grammar that is loaded again has its whole time"


def test_a_shared_process_that_has_no_memory_left_ends(shared):
    shared.take_turn(Turn([LoadGrammar(1, RISING), Start(1, 1)]))
    with pytest.raises(MemoryError):
        shared.take_turn(Turn([Accept(1, [13])]))


def test_a_shared_process_writes_which_grammar_it_executes(shared, masks):
    loads = [LoadGrammar(7, RISING), LoadGrammar(8, RISING), Start(1, 7), Start(2, 8)]
    shared.take_turn(Turn(loads))
    assert RUNNING.unpack_from(masks, 3 * 4) == (0,), "none between turns"
    for matcher, grammar in ((1, 7), (2, 8)):
        with pytest.raises(MemoryError):
            shared.take_turn(Turn([Fill(1, 0), Fill(2, 1), Accept(matcher, [13])]))
        assert RUNNING.unpack_from(masks, 3 * 4) == (grammar,)


def test_errors_of_ours_are_for_the_client_and_others_for_the_log():
    assert failure_of(GrammarError("no end")).message == "no end"
    assert failure_of(GrammarError("no end")).is_for_client
    assert "exceeds the memory limit of one grammar" in failure_of(MemoryError()).message
    assert failure_of(MemoryError()).is_for_client
    assert not failure_of(KeyError("x")).is_for_client


@pytest.mark.parametrize("error", [GrammarError("odd \udc80"), KeyError("odd \udc80")])
def test_an_error_whose_text_is_not_unicode_can_be_sent(error):
    sent = msgspec.msgpack.encode(failure_of(error))
    assert "odd" in msgspec.msgpack.decode(sent, type=Failure).message


def test_the_mask_of_the_end_allows_every_end_and_nothing_else():
    masks = SharedMasks(3, Vocabulary({b"a": [0]}, (2, 37), 40))
    assert len(masks._table) == 3 * 8 + RUNNING.size
    words = int.from_bytes(masks.end, "little")
    assert words == 1 << 2 | 1 << 37
    assert len(masks.end) == len(masks.row(0)) == 8
    masks._table[8:16] = b"second!!"
    assert [masks.row(index) for index in range(3)] == [bytes(8), b"second!!", bytes(8)]
    masks.close()
