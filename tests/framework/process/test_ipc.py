"""A channel carries only valid messages, and waits for other descriptors as well."""

import os
import pickle
import socket
import threading
import time

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.process.ipc import Channel, UnreadableError, decode, encode
from quire.sampling_params import StructuredOutputsParams


class Ball(msgspec.Struct, frozen=True, tag=True):
    number: int


class Hoop(msgspec.Struct, frozen=True, tag=True):
    color: str


class Trap:
    """Unpickling it would leave a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def address(tmp_path_factory):
    return f"ipc://{tmp_path_factory.mktemp('s')}/a"


@pytest.fixture
def ends(address):
    listening = Channel(Ball | Hoop, address, is_listening=True)
    connecting = Channel(Ball | Hoop, address, is_listening=False)
    connecting.send(Ball(0))
    assert listening.take(5.0) == Ball(0)
    yield listening, connecting
    listening.close()
    connecting.close()


@pytest.fixture
def foreign(address):
    """A listening channel, and a raw socket that can send any bytes to it."""
    channel = Channel(Ball | Hoop, address, is_listening=True)
    context = zmq.Context()
    sender = context.socket(zmq.PAIR)
    sender.connect(address)
    yield channel, sender
    sender.close(0)
    context.term()
    channel.close()


def test_messages_arrive_whole_and_in_order(ends):
    listening, connecting = ends
    sent = [Ball(1), Hoop("red" * 10**6), Ball(2**63)]
    for message in sent:
        connecting.send(message)
    assert [listening.take(5.0) for _ in sent] == sent
    listening.send(Ball(3))
    assert connecting.take(5.0) == Ball(3)


def test_without_a_message_take_returns_none_at_once(ends):
    started = time.monotonic()
    assert ends[0].take() is None
    assert ends[0].take(0.05) is None
    assert list(ends[0].wait(0.05)) == []
    assert time.monotonic() - started < 2.0


def test_sending_never_waits_for_a_reader(address):
    sender = Channel(Ball, address, is_listening=False)
    started = time.monotonic()
    for number in range(5000):
        sender.send(Ball(number))
    assert time.monotonic() - started < 5
    reader = Channel(Ball, address, is_listening=True)
    assert [reader.take(5.0).number for _ in range(5000)] == list(range(5000))
    sender.close()
    reader.close()


def test_sending_to_a_disconnected_process_is_a_typed_error(ends):
    listening, connecting = ends
    connecting.close()
    time.sleep(0.2)  # until the disconnection is noticed
    with pytest.raises(EngineDeadError, match="disconnected"):
        listening.send(Ball(2))


def test_a_watched_file_descriptor_ends_the_waiting(ends):
    reader, writer = os.pipe()
    ends[0].watch(reader)
    assert list(ends[0].wait(0.01)) == []
    os.write(writer, b"x")
    assert list(ends[0].wait(5.0)) == [reader]
    os.close(reader)
    os.close(writer)


def test_a_message_ends_the_waiting(ends):
    ends[1].send(Ball(1))
    ends[0].wait(5.0)
    assert ends[0].take() == Ball(1)


def test_a_pickle_is_no_message_and_is_never_opened(foreign, tmp_path):
    channel, sender = foreign
    trace = tmp_path / "opened"
    sender.send(pickle.dumps(Trap(trace)))
    with pytest.raises(EngineDeadError, match="are not a valid message"):
        channel.take(5.0)
    assert not trace.exists()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00", b"\xc1" * 100, encode({"type": "Cube"}), encode(["Ball"]), b"\x91" * 100_000],
    ids=["empty", "zero", "never-used", "unknown", "untagged", "deep"],
)
def test_garbage_is_a_typed_error_and_the_next_message_is_read(foreign, garbage):
    channel, sender = foreign
    sender.send(garbage)
    sender.send(encode(Ball(4)))
    with pytest.raises(EngineDeadError, match=f"{len(garbage)} bytes"):
        channel.take(5.0)
    assert channel.take(5.0) == Ball(4)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_typed_error(data):
    try:
        message = decode(data, Ball | Hoop)
    except UnreadableError:
        return
    assert isinstance(message, Ball | Hoop)


def test_what_the_message_itself_refuses_is_unreadable():
    with pytest.raises(UnreadableError, match="exactly one of"):
        decode(encode({"regex": "a", "choice": ["b"]}), StructuredOutputsParams)


@pytest.mark.parametrize(
    "thing",
    [object(), 2**64, "\ud800", Trap("x"), [Ball(1), {1, object()}]],
    ids=["object", "large", "surrogate", "trap", "inside"],
)
def test_what_msgpack_cannot_carry_is_a_typed_error(thing):
    with pytest.raises(QuireError, match="cannot be sent"):
        encode(thing)


def test_a_third_socket_cannot_join_a_pair(ends, address):
    ends[0].send(Ball(1))
    assert ends[1].take(5.0) == Ball(1)
    context = zmq.Context()
    third = context.socket(zmq.PAIR)
    third.connect(address)
    third.send(b"not a message at all", zmq.NOBLOCK)
    assert ends[0].take(0.2) is None
    ends[1].send(Ball(2))
    assert ends[0].take(5.0) == Ball(2)
    third.close(0)
    context.term()


def test_bytes_that_are_not_zeromq_are_dropped(address):
    channel = Channel(Ball, address, is_listening=True)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(address.removeprefix("ipc://"))
        raw.sendall(os.urandom(4096))
        other = Channel(Ball, address, is_listening=False)
        other.send(Ball(5))
        assert channel.take(5.0) == Ball(5)
    channel.close()
    other.close()


def test_an_address_that_cannot_be_had_is_a_typed_error(tmp_path):
    with pytest.raises(QuireError, match="a socket cannot be opened"):
        Channel(Ball, f"ipc://{tmp_path}/nowhere/a", is_listening=True)


def test_waiting_takes_its_time_and_no_more(ends):
    started = time.monotonic()
    assert list(ends[0].wait(0.2)) == []
    assert time.monotonic() - started > 0.15
    assert ends[0].take(0.2) is None
    assert time.monotonic() - started > 0.35


def test_a_last_word_is_sent_before_hanging_up(address):
    speaker = Channel(Ball, address, is_listening=False)
    speaker.send(Ball(1))  # the other end does not listen yet
    closing = threading.Thread(target=speaker.close, args=(5.0,))
    closing.start()
    time.sleep(0.05)
    listener = Channel(Ball, address, is_listening=True)
    assert listener.take(5.0) == Ball(1)
    closing.join(5)
    assert not closing.is_alive()
    listener.close()


def test_a_fork_that_hangs_up_closes_nothing(ends):
    listening, connecting = ends
    pid = os.fork()
    if pid == 0:
        listening.close()
        connecting.close(1.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    connecting.send(Ball(7))
    assert listening.take(5.0) == Ball(7)


def test_closing_twice_is_harmless(address):
    channel = Channel(Ball, address, is_listening=True)
    channel.close()
    channel.close()


def test_an_unreadable_message_is_a_quire_error_but_no_request_error():
    assert issubclass(UnreadableError, QuireError)
    assert not issubclass(UnreadableError, InvalidRequestError)
