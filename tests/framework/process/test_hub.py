"""A hub: several processes at one socket, broadcasts that an interrupt does not break."""

import msgspec
import pytest
import zmq

from quire.errors import EngineDeadError, QuireError
from quire.process.hub import Hub, HubChannel


class Word(msgspec.Struct, tag=True, array_like=True):
    text: str


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/hub"


@pytest.fixture
def ends(address):
    """A hub with three peers, by the order of their first message."""
    hub = Hub(Word, address)
    channels = [HubChannel(Word, address) for _ in range(3)]
    peers = []
    for number, channel in enumerate(channels):
        channel.send(Word(f"hello {number}"))
        peer, message = hub.take(5)
        assert message == Word(f"hello {number}")
        peers.append(peer)
    yield hub, peers, channels
    hub.close()
    for channel in channels:
        channel.close()


def test_a_message_reaches_those_it_is_for_and_no_other(ends):
    hub, peers, channels = ends
    hub.send(peers[:2], Word("two of you"))
    hub.send(peers[2:], Word("the third"))
    assert [channel.receive(5).text for channel in channels] == ["two of you"] * 2 + ["the third"]
    assert [channel.receive(0.05) for channel in channels] == [None] * 3


def test_messages_of_each_peer_stay_in_order(ends):
    hub, peers, channels = ends
    for number in range(50):
        hub.send(peers, Word(str(number)))
    for channel in channels:
        assert [channel.receive(5).text for _ in range(50)] == [str(n) for n in range(50)]


class Interrupts:
    """A socket whose send is interrupted once, before or after the message has left."""

    def __init__(self, socket, when, call):
        self._socket, self._when, self._calls_left = socket, when, call

    def send_multipart(self, frames, flags):
        self._calls_left -= 1
        if self._calls_left == 0 and self._when == "before":
            raise KeyboardInterrupt
        self._socket.send_multipart(frames, flags)
        if self._calls_left == 0 and self._when == "after":
            raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self._socket, name)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupted_broadcast_is_completed_by_the_next_one(ends, when, call):
    hub, peers, channels = ends
    socket, hub._socket = hub._socket, Interrupts(hub._socket, when, call)
    with pytest.raises(KeyboardInterrupt):
        hub.send(peers, Word("one"))
    hub._socket = socket
    hub.send(peers, Word("two"))
    hub.send(peers, Word("three"))
    for channel in channels:
        assert [channel.receive(5).text for _ in range(3)] == ["one", "two", "three"]
        assert channel.receive(0.05) is None


@pytest.mark.parametrize("frame", [b"\xff", b"", msgspec.msgpack.encode(["Other", 1])])
def test_a_message_that_cannot_be_read_is_an_error(ends, frame):
    hub, _, channels = ends
    channels[0]._socket.send(frame)
    with pytest.raises(EngineDeadError, match=f"{len(frame)} bytes from another process"):
        hub.take(5)


def test_a_message_of_several_frames_is_an_error(ends):
    hub, _, channels = ends
    channels[0]._socket.send_multipart([b"a", b"b"])
    with pytest.raises(EngineDeadError, match="several frames"):
        hub.take(5)


def test_a_message_of_the_hub_that_cannot_be_read_is_an_error(ends):
    hub, peers, channels = ends
    hub._socket.send_multipart((peers[0], (99).to_bytes(8, "little"), b"\xff"))
    with pytest.raises(EngineDeadError, match="1 bytes from the engine"):
        channels[0].receive(5)


def test_sending_to_a_peer_that_is_gone_is_an_error_and_the_next_message_is_not_lost(ends):
    hub, peers, channels = ends
    with pytest.raises(EngineDeadError, match="has disconnected"):
        hub.send([b"nobody"], Word("where are you"))
    hub.send(peers, Word("still here"))
    assert [channel.receive(5).text for channel in channels] == ["still here"] * 3


def test_waiting_returns_the_readable_descriptors(ends):
    import os

    hub, _, channels = ends
    reader, writer = os.pipe()
    hub.watch(reader)
    assert list(hub.wait(0.0)) == []
    os.write(writer, b"x")
    assert list(hub.wait(5)) == [reader]
    hub.unwatch(reader)
    channels[0].send(Word("x"))
    assert list(hub.wait(5)) == []
    assert hub.take()[1] == Word("x")
    os.close(reader)
    os.close(writer)


def test_what_cannot_be_encoded_is_refused(ends):
    hub, peers, channels = ends
    with pytest.raises(QuireError, match="cannot be sent"):
        hub.send(peers, Word(object()))
    with pytest.raises(QuireError, match="cannot be sent"):
        channels[0].send(Word(2**70))


def test_an_address_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(QuireError, match=f"cannot be opened at ipc://{tmp_path}/no/such/hub"):
        Hub(Word, f"ipc://{tmp_path}/no/such/hub")


def test_closing_twice_is_harmless(address):
    hub = Hub(Word, address)
    hub.close()
    hub.close()
    with pytest.raises(zmq.ZMQError):
        hub._socket.send(b"x")
