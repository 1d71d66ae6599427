"""The engine side of a grammar process: added operations are sent in the next turn, once."""

import socket

import pytest

from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_link import GrammarLink
from quire.engine.grammar.grammar_wire import (
    Accept,
    Drop,
    Failure,
    Fill,
    LoadGrammar,
    Sendable,
    Setup,
    Start,
    Turn,
    TurnDone,
    UnloadGrammar,
    VocabularyMessage,
    receive,
    send,
)
from quire.engine.grammar.shared_masks import SharedMasks
from quire.interfaces.structured_output import Vocabulary

VOCABULARY = Vocabulary({b"a": [0]}, (1,), 2)
FILL = Fill(1, 0)


@pytest.fixture
def ends():
    """A link, and the socket that its process would have. The fork server is not started."""
    masks = SharedMasks(1, VOCABULARY)
    vocabulary = VocabularyMessage.of(VOCABULARY)
    setup = Setup(
        plugins={},
        vocabulary=vocabulary,
        num_rows=1,
        memory_limit_bytes=0,
        shared_memory_limit_bytes=0,
    )
    fork_server = GrammarForkServer(setup, masks.fd)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield GrammarLink(1, ours, fork_server, 1.0), theirs
    fork_server.close()
    masks.close()


def turn(ends):
    """Take a turn with a fill; returns what the process was to do."""
    link, theirs = ends
    link.begin_turn([FILL])
    send(theirs, TurnDone({}))
    link.end_turn()
    return receive(theirs, Turn).operations


def test_what_was_added_goes_with_the_next_turn_and_once(ends):
    link, _ = ends
    link.add(Start(1, 1))
    link.add(Accept(1, [0]))
    assert turn(ends) == [Start(1, 1), Accept(1, [0]), FILL]
    assert turn(ends) == [FILL]


def test_of_a_matcher_that_is_dropped_nothing_else_is_sent(ends):
    link, _ = ends
    for operation in (Start(2, 1), Start(1, 1), Accept(2, [0])):
        link.add(operation)
    link.drop(2)
    assert turn(ends) == [Start(1, 1), Drop(2), FILL]


def test_a_turn_is_over_when_the_process_has_said_what_came_of_it(ends):
    link, theirs = ends
    assert not link.is_in_turn
    link.begin_turn([FILL])
    assert link.is_in_turn
    done = TurnDone({1: Failure("not allowed")})
    send(theirs, done)
    assert link.end_turn() == done
    assert not link.is_in_turn


def test_a_grammar_that_is_removed_before_it_was_sent_is_never_sent(ends):
    link, _ = ends
    link.load(1, Sendable("backend", b"one"))
    link.load(2, Sendable("backend", b"two"))
    link.unload(1)
    assert turn(ends) == [LoadGrammar(2, Sendable("backend", b"two")), FILL]
    link.unload(2)
    assert turn(ends) == [UnloadGrammar(2), FILL]
