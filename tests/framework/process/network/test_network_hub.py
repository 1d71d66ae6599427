"""A hub for several machines: broadcasts that an interrupt does not break, and lost peers."""

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from hub_ends import KEY, TCP, Word, check_serves, joined, next_lost, port_of
from processes import eventually

from quire.errors import EngineDeadError, QuireError, SettingsError
from quire.process.network import connection_guard
from quire.process.network.network_channel import NetworkChannel
from quire.process.network.network_hub import NetworkHub


@pytest.fixture
def guards():
    """Return a function for the threads beside the hubs of this test."""
    before = threading.enumerate()
    return lambda: [
        thread
        for thread in threading.enumerate()
        if "guard" in thread.name and thread not in before
    ]


@pytest.fixture
def hub():
    hub = NetworkHub(Word, TCP, KEY)
    yield hub
    hub.close()


@pytest.fixture
def ends(hub):
    """A hub with three peers, by the order of their first message."""
    channels, peers = zip(*[joined(hub) for _ in range(3)], strict=True)
    yield hub, list(peers), channels
    hub.close()
    for channel in channels:
        channel.close()


class Interrupts:
    """A socket whose send is interrupted once, before, within or after a message."""

    def __init__(self, socket, num_sent, call):
        self._socket, self._num_sent, self._calls_left = socket, num_sent, call

    def send_multipart(self, frames, flags):
        self._calls_left -= 1
        if self._calls_left:
            self._socket.send_multipart(frames, flags)
            return
        for frame in frames[: self._num_sent]:
            last = self._num_sent == len(frames) and frame is frames[-1]
            self._socket.send(frame, flags if last else flags | zmq.SNDMORE)
        raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self._socket, name)


@pytest.mark.parametrize("num_sent", [0, 1, 2, 3])  # frames: the peer, the number, the message
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupted_broadcast_is_completed_by_the_next_one(ends, num_sent, call):
    hub, peers, channels = ends
    socket, hub._socket = hub._socket, Interrupts(hub._socket, num_sent, call)
    with pytest.raises(KeyboardInterrupt):
        hub.send(peers, Word("one"))
    hub._socket = socket
    hub.send(peers, Word("two"))
    hub.send(peers, Word("three"))
    for channel in channels:
        assert [channel.receive(5).text for _ in range(3)] == ["one", "two", "three"]
        assert channel.receive(0.05) is None


def test_a_message_without_a_frame_is_an_error(ends):
    hub, _, channels = ends
    channels[0]._socket.send_multipart([b"", b""])
    with pytest.raises(EngineDeadError, match="0 bytes from another process"):
        hub.take(5)


@pytest.mark.parametrize("frame", [b"\xff", b""])
def test_a_message_that_cannot_be_read_is_an_error(ends, frame):
    hub, _, channels = ends
    channels[0]._socket.send(frame)
    with pytest.raises(EngineDeadError, match=f"{len(frame)} bytes from another process"):
        hub.take(5)


def test_a_message_of_the_hub_that_cannot_be_read_is_an_error(ends):
    hub, peers, channels = ends
    hub._socket.send_multipart((peers[0], (99).to_bytes(8, "little"), b"\xff"))
    with pytest.raises(EngineDeadError, match="1 bytes from the engine"):
        channels[0].receive(5)


def test_a_lost_peer_is_reported_once_and_the_others_go_on(hub):
    (first, gone), (second, there) = joined(hub), joined(hub)
    assert hub.lost() == []
    first.close()
    assert next_lost(hub) == [gone]
    hub.wait(1.5)  # a second report comes, in case that the first was too early
    assert hub.lost() == []
    with pytest.raises(EngineDeadError, match="has disconnected"):
        hub.send([gone], Word("are you there"))
    check_serves(hub, second, there)
    second.close()


def test_a_peer_that_is_gone_before_its_only_message_is_taken_is_lost(hub):
    channel = NetworkChannel(Word, hub.address, KEY)
    channel.connect(5)
    channel.send(Word("bye"))
    channel.close(5)
    time.sleep(1.3)  # longer than until the second report of a disconnection
    assert hub.lost() == []  # it is not known yet
    peer, message = hub.take(5)
    assert message == Word("bye")
    assert next_lost(hub) == [peer]


def test_a_lost_peer_that_comes_again_is_another_peer(hub):
    channel, first = joined(hub)
    channel.close()
    assert next_lost(hub) == [first]
    channel, second = joined(hub)
    assert second != first
    check_serves(hub, channel, second)
    channel.close()


def test_what_a_lost_peer_has_sent_can_be_taken(hub):
    channel, peer = joined(hub)
    channel.send(Word("last words"))
    channel.close(5)
    assert next_lost(hub) == [peer]
    assert hub.take() == (peer, Word("last words"))


def test_waiting_for_nothing_else_returns_when_a_peer_is_lost(hub):
    channel, peer = joined(hub)
    hub.lost()
    assert list(hub.wait(0.0)) == []
    channel.close()
    assert list(hub.wait(20)) == []
    assert next_lost(hub) == [peer]


def test_a_port_of_all_interfaces_is_refused():
    with pytest.raises(SettingsError, match="address of all interfaces"):
        NetworkHub(Word, "tcp://*:0", KEY)


def test_a_port_that_is_occupied_is_named(guards, hub):
    with pytest.raises(QuireError, match=f"cannot be opened at {hub.address}: Address already"):
        NetworkHub(Word, hub.address, KEY)
    assert len(guards()) == 1


def test_only_the_given_address_listens():
    hub = NetworkHub(Word, "tcp://127.0.0.2:0", KEY)
    port = port_of(hub)
    assert listening(port) == ["0200007F"]
    hub.close()
    assert listening(port) == []


def test_an_ipv6_address_works():
    hub = NetworkHub(Word, "tcp://[::1]:0", KEY)
    assert hub.address.startswith("tcp://[::1]:")
    channel = NetworkChannel(Word, hub.address, KEY)
    assert channel.connect(5) == "::1"
    channel.send(Word("hello"))
    assert hub.take(5)[1] == Word("hello")
    channel.close()
    hub.close()


def test_nothing_is_left_of_a_hub_that_is_closed():
    num_files = len(os.listdir("/proc/self/fd"))
    num_threads = threading.active_count()
    hub = NetworkHub(Word, TCP, KEY)
    channel, _ = joined(hub)
    channel.close()
    hub.close()
    assert threading.active_count() == num_threads
    assert len(os.listdir("/proc/self/fd")) == num_files


def test_nothing_is_left_of_a_hub_that_is_forgotten(guards):
    hub = NetworkHub(Word, TCP, KEY)
    port = port_of(hub)
    del hub
    gc.collect()
    assert not guards()
    assert listening(port) == []


def test_a_forgotten_hub_may_be_collected_by_its_own_guard(monkeypatch, guards):
    answer = connection_guard._answer

    def collect(*arguments):
        gc.collect()
        return answer(*arguments)

    monkeypatch.setattr(connection_guard, "_answer", collect)
    hub = NetworkHub(Word, TCP, KEY)
    hub.itself = hub  # only a collection of garbage finds it
    address = hub.address
    gc.disable()
    try:
        del hub
        channel = NetworkChannel(Word, address, KEY)
        with suppress(QuireError):
            channel.connect(5)  # the guard collects the garbage before it answers
        channel.close()
        eventually(lambda: not guards())
    finally:
        gc.enable()


def listening(port):
    """Return the addresses on which a port listens, as the kernel shows them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                found.append(local.partition(":")[0])
    return found
