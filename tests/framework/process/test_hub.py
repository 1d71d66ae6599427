"""A hub of either kind: several processes at one socket, and messages that none misses."""

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hub_ends import KEY, TCP, Word, check_serves, joined

from quire.errors import EngineDeadError, QuireError
from quire.process.ipc import encode
from quire.process.local.local_hub import LocalHub
from quire.process.network.network_hub import NetworkHub


@pytest.fixture(params=["local", "network"])
def hub(request, tmp_path):
    """A hub on one machine, or for several machines."""
    if request.param == "network":
        made = NetworkHub(Word, TCP, KEY)
    else:
        made = LocalHub(Word, f"unix://{tmp_path}/hub")
    yield made
    made.close()


@pytest.fixture
def ends(hub):
    """A hub with three peers, by the order of their first message."""
    channels, peers = zip(*[joined(hub) for _ in range(3)], strict=True)
    yield hub, list(peers), channels
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


@pytest.mark.parametrize("data", [b"", b"\xff", encode(["Other", 1])])
def test_a_message_that_cannot_be_read_is_an_error_of_its_size(ends, data):
    hub, peers, channels = ends
    text = f"{len(data)} bytes from .* are not a valid message"
    channels[0].send(msgspec.Raw(data))
    with pytest.raises(EngineDeadError, match=text):
        hub.take(5)
    if data:  # a hub for several machines probes with empty messages
        hub.send(peers[:1], msgspec.Raw(data))
        with pytest.raises(EngineDeadError, match=text):
            channels[0].receive(5)


def test_sending_to_a_peer_that_is_gone_is_an_error_and_the_next_message_is_not_lost(ends):
    hub, peers, channels = ends
    with pytest.raises(EngineDeadError, match="has disconnected"):
        hub.send([b"nobody"], Word("where are you"))
    hub.send(peers, Word("still here"))
    assert [channel.receive(5).text for channel in channels] == ["still here"] * 3


def test_waiting_returns_the_readable_descriptors(ends):
    hub, _, channels = ends
    reader, writer = os.pipe()
    hub.watch(reader)
    assert not hub.lost()  # until this is asked, `wait` returns: a new peer may be gone already
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


def test_closing_twice_is_harmless(hub):
    hub.close()
    hub.close()


@pytest.mark.parametrize("size", [0, 2**18 - 8, 2**18, 2**18 + 1, 3 * 2**20])
def test_a_message_of_any_size_arrives_whole(ends, size):
    hub, peers, channels = ends
    with ThreadPoolExecutor() as pool:
        hub.send(peers, Word("x" * size))
        found = [pool.submit(channel.receive, 10) for channel in channels]
        while not all(each.done() for each in found):
            hub.wait(0.01)
        assert [each.result().text for each in found] == ["x" * size] * 3
        channels[0].send(Word("y" * size))
        taken = pool.submit(hub.take, 10)
        while not taken.done():
            channels[0].wait(0.01)
        assert taken.result() == (peers[0], Word("y" * size))


def test_a_fork_leaves_the_hub_to_its_parent(ends):
    hub, peers, channels = ends
    pid = os.fork()
    if pid == 0:
        hub.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check_serves(hub, channels[0], peers[0])


def test_the_last_message_arrives_before_the_end(ends):
    hub, peers, channels = ends
    hub.send(peers, Word("stop"))
    hub.close(5)
    assert [channel.receive(5) for channel in channels] == [Word("stop")] * 3
