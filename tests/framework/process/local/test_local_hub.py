"""A hub of one machine: interrupts, strangers, and peers that are gone."""

import os
import resource
import socket
import time

import pytest
from hub_ends import Word, check_serves, joined
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import EngineDeadError, QuireError
from quire.process.local.local_channel import LocalChannel
from quire.process.local.local_hub import LocalHub


@pytest.fixture
def hub(tmp_path):
    made = LocalHub(Word, f"unix://{tmp_path}/hub")
    yield made
    made.close()


class Interrupted:
    """A connection of a hub that raises an interrupt at one of its calls."""

    def __init__(self, connection, verb):
        self._connection, self._verb = connection, verb

    def queue(self, packets):
        self._raise("before queue")
        self._connection.queue(packets)
        self._raise("after queue")

    def flush(self):
        self._connection.flush()
        self._raise("after flush")

    def _raise(self, verb):
        if self._verb == verb:
            self._verb = None
            raise KeyboardInterrupt

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.mark.parametrize("verb", ["before queue", "after queue", "after flush"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_interrupted_broadcast_is_completed_by_the_next_one(hub, verb, which):
    channels, peers = zip(*[joined(hub) for _ in range(3)], strict=True)
    peer = peers[which]
    hub._connections[peer] = Interrupted(hub._connections[peer], verb)
    with pytest.raises(KeyboardInterrupt):
        hub.send(peers, Word("one"))
    hub.send(peers, Word("two"))
    for channel in channels:
        assert [channel.receive(5).text for _ in range(2)] == ["one", "two"]
        assert channel.receive(0.01) is None
        channel.close()


def test_an_interrupted_broadcast_is_completed_when_an_answer_is_awaited(hub):
    channels, peers = zip(*[joined(hub) for _ in range(2)], strict=True)
    hub._connections[peers[0]] = Interrupted(hub._connections[peers[0]], "after flush")
    with pytest.raises(KeyboardInterrupt):
        hub.send(peers, Word("one"))
    assert hub.take(0.01) is None
    for channel in channels:
        assert channel.receive(5) == Word("one")
        assert channel.receive(0.01) is None
        channel.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_every_peer_gets_its_turn_and_its_order(tmp_path_factory, sent):
    hub = LocalHub(Word, f"unix://{tmp_path_factory.mktemp('s')}/hub")
    channels, peers = zip(*[joined(hub) for _ in range(3)], strict=True)
    expected = {peer: [] for peer in peers}
    for number, (which, size) in enumerate(sent):
        word = Word(f"{number}" + "x" * (size * 50_000))
        channels[which].send(word)
        expected[peers[which]].append(word)
        channels[which].wait(0.0)
    found = {peer: [] for peer in peers}
    while any(len(found[peer]) < len(expected[peer]) for peer in peers):
        for channel in channels:
            channel.wait(0.0)  # sends what did not fit
        if (taken := hub.take()) is not None:
            found[taken[0]].append(taken[1])
    assert found == expected
    assert hub.take() is None
    for end in (hub, *channels):
        end.close()


def test_a_peer_that_sends_without_end_does_not_keep_others_waiting(hub):
    (busy, _), (quiet, peer) = joined(hub), joined(hub)
    for _ in range(50):
        busy.send(Word("more"))
    quiet.send(Word("me, too"))
    assert (peer, Word("me, too")) in [hub.take(5) for _ in range(3)]
    busy.close()
    quiet.close()


@pytest.mark.parametrize("packet", [b"\x00", b"GET / HTTP/1.1\r\n\r\n", os.urandom(2**16)])
def test_a_stranger_is_shut_out_and_the_peers_are_served(hub, packet, caplog):
    channel, peer = joined(hub)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(hub.address.removeprefix("unix://"))
        stranger.send(packet)
        check_serves(hub, channel, peer)
        assert hub.take(0.05) is None
        assert not stranger.recv(1)
    assert "is closed: a packet" in caplog.text
    channel.close()


def test_a_socket_of_another_kind_cannot_connect(hub):
    with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(OSError, match="wrong type"):
        stranger.connect(hub.address.removeprefix("unix://"))


def test_a_peer_that_is_gone_costs_no_time_and_its_last_words_are_taken(hub):
    (gone, first), (there, second) = joined(hub), joined(hub)
    gone.send(Word("bye"))
    gone.close()
    assert hub.take(5) == (first, Word("bye"))
    started = time.monotonic()
    assert list(hub.wait(0.1)) == []  # although its socket is readable for ever
    assert time.monotonic() - started > 0.09
    with pytest.raises(EngineDeadError, match=f"process {first.hex()} has disconnected"):
        hub.send([first], Word("are you there"))
    assert hub.lost() == ()
    check_serves(hub, there, second)
    there.close()


def test_a_hub_that_is_gone_is_an_error_after_its_last_words(hub):
    channel, peer = joined(hub)
    hub.send([peer], Word("bye"))
    hub.close()
    assert list(channel.wait(5)) == []
    assert channel.receive() == Word("bye")
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=f"has disconnected from {hub.address}"):
            channel.receive()
    assert list(channel.wait()) == []
    with pytest.raises(EngineDeadError, match="has disconnected"):
        channel.send(Word("x"))
    channel.close()


def test_an_address_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(QuireError, match=f"cannot be opened at unix://{tmp_path}/no/such/hub"):
        LocalHub(Word, f"unix://{tmp_path}/no/such/hub")
    with pytest.raises(QuireError, match=f"the socket {tmp_path}/no/such/hub cannot be connected"):
        LocalChannel(Word, f"unix://{tmp_path}/no/such/hub")


def test_nothing_is_left_of_a_hub_that_is_closed(tmp_path):
    num_files = len(os.listdir("/proc/self/fd"))
    hub = LocalHub(Word, f"unix://{tmp_path}/hub")
    channel, _ = joined(hub)
    channel.close()
    hub.close()
    assert len(os.listdir("/proc/self/fd")) == num_files


def test_what_did_not_fit_is_sent_while_the_hub_closes(hub):
    channel, peer = joined(hub)
    words = [Word("x" * 100_000) for _ in range(2)]
    for word in words:
        hub.send([peer], word)
    hub.close(5)
    assert [channel.receive(5) for _ in words] == words
    channel.close()


def test_a_connection_for_which_no_descriptor_is_left_is_an_error(hub):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(hub.address.removeprefix("unix://"))
        free = os.dup(peer.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(QuireError, match=r"cannot be accepted: .*Too many open files"):
                hub.take()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
