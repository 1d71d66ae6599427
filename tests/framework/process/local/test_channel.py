"""A channel carries only valid messages, and waits for other descriptors as well."""

import os
import pickle
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from quire.errors import EngineDeadError, QuireError
from quire.process.ipc import encode
from quire.process.local.channel import Channel
from quire.process.local.unix_connection import connected_to
from quire.process.local.unix_listener import path_of


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
    return f"unix://{tmp_path_factory.mktemp('s')}/a"


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
    """A listening channel, and a connection that can send any bytes to it as a message."""
    channel = Channel(Ball | Hoop, address, is_listening=True)
    connection = connected_to(path_of(address))

    def send(data):
        connection.queue(connection.packets(data))
        connection.flush()

    yield channel, send
    connection.close()
    channel.close()


def test_messages_arrive_whole_and_in_order(ends):
    listening, connecting = ends
    sent = [Ball(1), Hoop("red" * 10**6), Ball(2**63)]
    for message in sent:
        connecting.send(message)
    found = []
    while len(found) < len(sent):
        connecting.wait(0.0)  # sends what did not fit
        if (message := listening.take()) is not None:
            found.append(message)
    assert found == sent
    listening.send(Ball(3))
    assert connecting.take(5.0) == Ball(3)


def test_without_a_message_take_returns_none_at_once(ends):
    started = time.monotonic()
    assert ends[0].take() is None
    assert ends[0].take(0.05) is None
    assert list(ends[0].wait(0.05)) == []
    assert time.monotonic() - started < 2.0


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
    channel, send = foreign
    trace = tmp_path / "opened"
    send(pickle.dumps(Trap(trace)))
    with pytest.raises(EngineDeadError, match="are not a valid message"):
        channel.take(5.0)
    assert not trace.exists()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00", b"\xc1" * 100, encode({"type": "Cube"}), encode(["Ball"]), b"\x91" * 100_000],
    ids=["empty", "zero", "never-used", "unknown", "untagged", "deep"],
)
def test_garbage_is_a_typed_error_and_the_next_message_is_read(foreign, garbage):
    channel, send = foreign
    send(garbage)
    send(encode(Ball(4)))
    with pytest.raises(EngineDeadError, match=f"{len(garbage)} bytes"):
        channel.take(5.0)
    assert channel.take(5.0) == Ball(4)


def test_an_address_that_cannot_be_had_is_a_typed_error(tmp_path):
    with pytest.raises(QuireError, match="a socket cannot be opened"):
        Channel(Ball, f"unix://{tmp_path}/nowhere/a", is_listening=True)


def test_waiting_takes_its_time_and_no_more(ends):
    started = time.monotonic()
    assert list(ends[0].wait(0.2)) == []
    assert time.monotonic() - started > 0.15
    assert ends[0].take(0.2) is None
    assert time.monotonic() - started > 0.35


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


def test_sending_never_waits_for_a_reader(ends):
    listening, connecting = ends
    started = time.monotonic()
    for number in range(5000):
        connecting.send(Ball(number))
    assert time.monotonic() - started < 5
    found = []
    while len(found) < 5000:
        connecting.wait(0.0)
        while (message := listening.take()) is not None:
            found.append(message.number)
    assert found == list(range(5000))


def test_sending_before_the_other_process_connects_is_a_typed_error(address):
    channel = Channel(Ball, address, is_listening=True)
    with pytest.raises(EngineDeadError, match="disconnected"):
        channel.send(Ball(1))
    channel.close()


@pytest.mark.parametrize("which", [0, 1])
def test_sending_to_a_disconnected_process_is_a_typed_error(ends, which):
    ends[which].close()
    with pytest.raises(EngineDeadError, match="disconnected"):
        ends[1 - which].send(Ball(2))


def test_the_listening_end_waits_on_for_the_descriptor_that_tells_why_the_other_end_closed(ends):
    listening, connecting = ends
    connecting.send(Ball(1))
    connecting.close()
    assert listening.take(5.0) == Ball(1)
    started = time.monotonic()
    assert listening.take(0.05) is None
    assert list(listening.wait(0.1)) == []  # although its socket is readable for ever
    assert time.monotonic() - started > 0.14


def test_the_connecting_end_is_told_that_the_other_end_closed(ends):
    listening, connecting = ends
    listening.send(Ball(1))
    listening.close()
    assert list(connecting.wait(5.0)) == []
    assert connecting.take() == Ball(1)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="disconnected"):
            connecting.take()
    assert list(connecting.wait()) == []


def test_a_third_process_cannot_join_a_pair(ends, address):
    with pytest.raises(QuireError, match="cannot be connected to"):
        Channel(Ball, address, is_listening=False)
    ends[1].send(Ball(2))
    assert ends[0].take(5.0) == Ball(2)


def test_a_stranger_that_comes_first_is_shut_out(address, caplog):
    channel = Channel(Ball, address, is_listening=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(path_of(address))
        stranger.send(os.urandom(4096))
        other = Channel(Ball, address, is_listening=False)
        other.send(Ball(5))
        assert channel.take(5.0) == Ball(5)
        assert not stranger.recv(1)
    assert "is closed: a packet begins with" in caplog.text
    channel.close()
    other.close()


def test_the_connecting_end_believes_no_bytes_of_another_protocol(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(f"{tmp_path}/s")
        server.listen()
        channel = Channel(Ball, f"unix://{tmp_path}/s", is_listening=False)
        accepted, _ = server.accept()
        accepted.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with pytest.raises(EngineDeadError, match="disconnected"):
            channel.take(5.0)
        accepted.close()
    channel.close()


def test_last_words_are_sent_while_a_channel_closes(ends):
    listening, connecting = ends
    words = [Hoop("red" * 20_000) for _ in range(2)]
    for word in words:
        connecting.send(word)
    connecting.close(5.0)
    assert [listening.take(5.0) for _ in words] == words


def test_draining_waits_for_a_slow_reader(ends):
    listening, connecting = ends
    word = Hoop("red" * 10**6)
    connecting.send(word)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(listening.take, 10.0)
        connecting.drain(10.0)
        assert taken.result() == word
