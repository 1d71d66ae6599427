"""The start of an engine process: what it says first, and what ends it."""

import os
import threading

import pytest
from processes import eventually

from quire.errors import EngineDeadError, GrammarError
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import (
    Connected,
    ErrorMessage,
    FromEngine,
    Ready,
    Refused,
    ToEngine,
)
from quire.messages import Started
from quire.process.children.child_process import SocketFolder
from quire.process.local.channel import Channel


class Peer:
    """A scripted engine process in this one."""

    pid = 0

    def __init__(self, address):
        self.channel = Channel(FromEngine, address, is_listening=True)
        self.other = Channel(ToEngine, address, is_listening=False)
        self.ends = []
        self._death_fd = os.eventfd(0)

    def fileno(self):
        return self._death_fd

    def end(self, timeout_s):
        self.ends.append(timeout_s)
        return "ended with exit code 3"

    def kill(self): ...

    def die(self):
        os.eventfd_write(self._death_fd, 1)

    def close(self):
        self.other.close()
        os.close(self._death_fd)


@pytest.fixture
def folder():
    made = SocketFolder()
    yield made
    made.remove()


@pytest.fixture
def peer(folder):
    made = Peer(folder.address)
    yield made
    made.close()


@pytest.fixture
def start(peer, folder):
    made = EngineStart(EngineLink(peer.channel, peer), folder)
    yield made
    made.close("over")


def test_a_start_waits_until_the_engine_is_ready(peer, start, folder):
    peer.other.send(Connected())
    timer = threading.Timer(0.03, peer.other.send, [Ready(Started(5))])
    timer.start()
    assert start.wait() == Started(5)
    timer.join()
    assert peer.ends == []
    assert not folder.path.exists()


def test_a_start_is_polled_without_waiting(peer, start, folder):
    assert start.poll() is None
    assert folder.path.exists()
    peer.other.send(Connected())
    eventually(lambda: start.poll() is None and not folder.path.exists())
    peer.other.send(Ready(Started(5)))
    eventually(lambda: start.poll() == Started(5))


@pytest.mark.parametrize("verb", [EngineStart.wait, EngineStart.poll])
def test_a_start_that_is_refused_raises_the_reason_and_ends_the_process(peer, start, folder, verb):
    peer.other.send(Refused(ErrorMessage.of(GrammarError("no such constraint", param="regex"))))
    with pytest.raises(GrammarError, match="no such constraint") as caught:
        eventually(lambda: verb(start))
    assert caught.value.param == "regex"
    assert peer.ends == [1.0]
    assert not folder.path.exists()


@pytest.mark.parametrize("verb", [EngineStart.wait, EngineStart.poll])
def test_a_process_that_sends_another_message_is_ended(peer, start, verb):
    peer.other.send(Ready(Started(5)))
    with pytest.raises(EngineDeadError, match="unexpectedly"):
        eventually(lambda: verb(start))
    assert peer.ends == [0.0]


@pytest.mark.parametrize("verb", [EngineStart.wait, EngineStart.poll])
def test_a_process_that_ends_is_said_so(peer, start, folder, verb):
    peer.die()
    with pytest.raises(EngineDeadError, match="exit code 3"):
        verb(start)
    assert not folder.path.exists()


def test_an_interrupted_start_ends_the_process(peer, start, folder, monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(start.link, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start.wait()
    assert len(peer.ends) == 1
    assert not folder.path.exists()
