"""A frame arrives whole, however it is cut, or not at all."""

import socket
import threading
import time

import msgspec
import pytest

from quire.engine.grammar import grammar_wire
from quire.engine.grammar.grammar_wire import (
    Accept,
    Drop,
    Failure,
    Fill,
    Start,
    Turn,
    TurnDone,
    VocabularyMessage,
    receive,
    receive_with_fds,
    send,
)
from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_operations_keep_their_kind_and_order(ends):
    turn = Turn([Start(1, 1), Accept(1, [5, 6]), Fill(1, 0), Drop(1)])
    send(ends[0], turn)
    assert receive(ends[1], Turn) == turn


def test_a_large_message_arrives_in_pieces(ends):
    done = TurnDone(dict.fromkeys(range(20000), Failure("reason " * 10)))
    sender = threading.Thread(target=send, args=(ends[0], done))
    sender.start()
    assert receive(ends[1], TurnDone) == done
    sender.join()


def test_an_end_that_is_gone_is_the_end_of_file(ends):
    ends[0].sendall(b"\x05")
    ends[0].close()
    with pytest.raises(EOFError):
        receive(ends[1], Turn)


def test_a_frame_that_is_too_long_is_not_sent(ends, monkeypatch):
    monkeypatch.setattr(grammar_wire, "MAX_FRAME_BYTES", 100)
    with pytest.raises(GrammarError, match="of 100 at most"):
        send(ends[0], Turn([Accept(1, [10**6] * 100)]))
    send(ends[0], Turn([Drop(1)]))
    assert receive(ends[1], Turn) == Turn([Drop(1)])


def test_after_a_frame_that_is_too_long_the_next_is_read(ends, monkeypatch):
    turn = Turn([Accept(1, [10**6] * 1000)])
    send(ends[0], turn)
    send(ends[0], Turn([Drop(1)]))
    monkeypatch.setattr(grammar_wire, "MAX_FRAME_BYTES", 100)
    with pytest.raises(msgspec.DecodeError, match="too long"):
        receive(ends[1], Turn)
    assert receive(ends[1], Turn) == Turn([Drop(1)])


def test_the_file_descriptor_of_nonsense_is_closed(ends):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ends[0], {"no": "order"}, [theirs.fileno()])
        theirs.close()
        with pytest.raises(msgspec.DecodeError):
            receive_with_fds(ends[1], Turn)
        assert ours.recv(1) == b""


def test_nonsense_is_refused(ends):
    ends[0].sendall(b"\x01\x00\x00\x00\x07")
    with pytest.raises(msgspec.DecodeError):
        receive(ends[1], Turn)


def test_a_vocabulary_survives_the_journey():
    vocabulary = Vocabulary({b"a": [0, 3], b"\xff": [1]}, (2,), 7)
    packed = msgspec.msgpack.encode(VocabularyMessage.of(vocabulary))
    assert msgspec.msgpack.decode(packed, type=VocabularyMessage).vocabulary() == vocabulary


def test_a_frame_of_just_the_most_bytes_arrives(ends, monkeypatch):
    turn = Turn([Accept(1, [10**6] * 9)])
    monkeypatch.setattr(grammar_wire, "MAX_FRAME_BYTES", len(msgspec.msgpack.encode(turn)))
    send(ends[0], turn)
    assert receive(ends[1], Turn) == turn


def test_a_frame_that_comes_byte_by_byte_arrives(ends):
    turn = Turn([Accept(1, [5, 6])])
    body = msgspec.msgpack.encode(turn)
    frame = len(body).to_bytes(4, "little") + body

    def trickle():
        for index in range(len(frame)):
            ends[0].sendall(frame[index : index + 1])
            time.sleep(0.001)

    sender = threading.Thread(target=trickle)
    sender.start()
    assert receive(ends[1], Turn) == turn
    sender.join()


def test_an_end_that_goes_within_a_frame_is_the_end_of_file(ends):
    ends[0].sendall(b"\x05\x00\x00\x00ab")
    ends[0].close()
    with pytest.raises(EOFError):
        receive(ends[1], Turn)


def test_text_that_is_none_is_nonsense_and_the_next_frame_is_read(ends):
    body = msgspec.msgpack.encode(Failure("text")).replace(b"text", b"te\xff\xfe")  # no UTF-8
    ends[0].sendall(len(body).to_bytes(4, "little") + body)
    send(ends[0], Failure("text"))
    with pytest.raises(msgspec.DecodeError, match="cannot be read"):
        receive(ends[1], Failure)
    assert receive(ends[1], Failure) == Failure("text")
