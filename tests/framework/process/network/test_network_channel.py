"""Channel to a hub on another machine: whether there is one, and the end of the connection."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hub_ends import KEY, TCP, Word, joined, next_lost
from processes import path_with

from quire.errors import EngineDeadError, QuireError, SettingsError
from quire.process.launch_key import LaunchKey
from quire.process.network import network_channel
from quire.process.network.network_channel import NetworkChannel
from quire.process.network.network_hub import NetworkHub

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\1" + bytes(31)


@pytest.fixture
def hub():
    hub = NetworkHub(Word, TCP, KEY)
    yield hub
    hub.close()


@pytest.fixture
def channels():
    """Make channels, which are closed at the end."""
    made = []

    def make(address, key=KEY):
        made.append(NetworkChannel(Word, address, key))
        return made[-1]

    yield make
    for channel in made:
        channel.close()


@pytest.fixture
def ends(hub):
    channel, peer = joined(hub)
    yield hub, channel, peer
    channel.close()


def test_the_end_of_the_hub_is_final(ends):
    hub, channel, _ = ends
    address = hub.address
    hub.close()
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=f"connection to the engine at {address} was"):
            channel.receive(10)
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.receive()
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.send(Word("x"))


def test_a_hub_that_comes_again_is_not_joined_again(ends):
    hub, channel, _ = ends
    address = hub.address
    hub.close()
    channel.wait(10)
    channel.send(Word("for the first engine"))  # it is not known yet that this one is gone
    again = NetworkHub(Word, address, KEY)
    assert again.take(1) is None
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.receive(10)
    again.close()


def test_messages_before_the_end_are_received_first(ends):
    hub, channel, peer = ends
    for number in range(100):
        hub.send([peer], Word(f"{number}" + "x" * 10_000))
    hub.close(10)
    channel.wait(10)
    assert [channel.receive(10).text.rstrip("x") for _ in range(100)] == [
        str(number) for number in range(100)
    ]
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.receive(10)


def test_waiting_returns_for_a_message_a_descriptor_and_the_end(ends):
    hub, channel, peer = ends
    reader, writer = os.pipe()
    channel.watch(reader)
    assert list(channel.wait(0.0)) == []
    os.write(writer, b"x")
    assert list(channel.wait(10)) == [reader]
    channel.unwatch(reader)
    hub.send([peer], Word("x"))
    assert list(channel.wait(10)) == []
    assert channel.receive(0.0) == Word("x")
    hub.close()
    assert list(channel.wait(10)) == []
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.receive(0.0)
    assert list(channel.wait()) == []  # it is still lost
    os.close(reader)
    os.close(writer)


def test_receiving_for_no_time_returns_at_once(ends):
    _, channel, _ = ends
    assert channel.receive(0.0) is None
    assert channel.receive(0.05) is None


def test_a_hub_that_comes_later_is_waited_for(channels):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
    hubs = []
    thread = threading.Timer(0.7, lambda: hubs.append(NetworkHub(Word, address, KEY)))
    thread.start()
    channel = channels(address)
    assert channel.connect(60) == "127.0.0.1"
    thread.join()
    channel.send(Word("hello"))
    assert hubs[0].take(10)[1] == Word("hello")
    hubs[0].close()


def test_a_hub_with_another_key_is_said(hub, channels):
    with pytest.raises(SettingsError, match=f"engine at {hub.address} has another launch key"):
        channels(hub.address, LaunchKey.new()).connect(60)


def greet_once_and_end(server):
    """Begin the handshake of an engine, which is killed then."""
    for _ in range(2):
        connection, _ = server.accept()
        with connection:
            connection.sendall(GREETING)
            connection.recv(1000)
    server.close()


def test_an_engine_that_ends_in_the_handshake_is_not_said_to_have_another_key(channels):
    server = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    greeter = threading.Thread(target=greet_once_and_end, args=(server,))
    greeter.start()
    with pytest.raises(QuireError, match=r"cannot be reached within .*: Connection refused"):
        channels(address).connect(1)
    greeter.join()


def test_an_engine_that_is_started_again_in_the_handshake_is_joined(channels):
    server = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    hubs = []

    def serve():
        greet_once_and_end(server)
        hubs.append(NetworkHub(Word, address, KEY))

    greeter = threading.Thread(target=serve)
    greeter.start()
    channel = channels(address)
    assert channel.connect(60) == "127.0.0.1"
    greeter.join()
    channel.send(Word("hello"))
    peer, message = hubs[0].take(10)
    assert message == Word("hello")
    hubs[0].send([peer], Word("hello, too"))
    assert channel.receive(10) == Word("hello, too")
    hubs[0].close()


def test_the_handshake_ends_by_the_time_limit_of_all(channels):
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=greet_and_fall_silent, args=(server,))
        greeter.start()
        channel = channels(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(QuireError, match="does not complete the handshake"):
            channel.connect(0.5)
        assert time.monotonic() - started < 4  # its own limit is 10 s
        channel.close()
        greeter.join()


def test_a_hub_that_does_not_answer_is_not_said_to_have_another_key(channels, monkeypatch):
    monkeypatch.setattr(network_channel, "HANDSHAKE_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=greet_and_fall_silent, args=(server,))
        greeter.start()
        channel = channels(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(QuireError, match="does not complete the handshake"):
            channel.connect(60)
        channel.close()
        greeter.join()


def greet_and_fall_silent(server):
    """Send what a listening socket with CURVE sends to begin with, to two connections."""
    for _ in range(2):
        connection, _ = server.accept()
        connection.sendall(GREETING)
        with connection, suppress(ConnectionResetError):
            while connection.recv(1000):
                pass


WORKER = """
import ctypes, sys
from hub_ends import Word
from quire.process.network.network_channel import NetworkChannel
from quire.process.launch_key import LaunchKey
channel = NetworkChannel(Word, sys.argv[1], LaunchKey.read("-", 10))
channel.connect(30)
channel.send(Word("joined"))
while True:
    seconds = int(channel.receive().text)
    ctypes.PyDLL(None).sleep(seconds)  # with the interpreter lock, as a long call of an extension
    channel.send(Word("done"))
"""

ENGINE = """
import sys, threading
from hub_ends import TCP, Word
from quire.process.network.network_hub import NetworkHub
from quire.process.launch_key import LaunchKey
hub = NetworkHub(Word, TCP, LaunchKey.read("-", 10))
print(hub.address, flush=True)
threading.Event().wait()
"""


@pytest.fixture
def start():
    """Start programs with the key on their standard input; they are killed at the end."""
    started = []

    def start(program, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path_with(Path(__file__).parents[2] / "parts")},
        )
        started.append(process)
        process.stdin.write(KEY.text.encode() + b"\n")
        process.stdin.flush()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_process_is_lost_at_once_a_stopped_one_soon_and_a_busy_one_not(
    hub, channels, start
):
    engine = start(ENGINE)
    channel = channels(engine.stdout.readline().decode().strip())
    channel.connect(30)
    workers = {}
    for _ in range(3):
        process = start(WORKER, hub.address)
        peer, message = hub.take(60)
        assert message == Word("joined")
        workers[peer] = process
    killed, stopped, busy = workers
    workers[killed].kill()
    started = time.monotonic()
    assert next_lost(hub) == [killed]
    assert time.monotonic() - started < 4  # without a heartbeat
    hub.send([busy], Word("8"))
    for process in (workers[stopped], engine):
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    assert next_lost(hub) == [stopped]
    assert 3 < time.monotonic() - started < 15
    with pytest.raises(EngineDeadError, match="was lost"):
        channel.receive(10)
    assert hub.take(60) == (busy, Word("done"))
    assert time.monotonic() - started > 7
    assert hub.lost() == []


def test_what_a_lost_hub_has_not_read_is_not_waited_for(channels):
    hub = NetworkHub(Word, "tcp://127.0.0.1:0", KEY)
    channel = channels(hub.address)
    channel.connect(60)
    hub.close()
    with pytest.raises(EngineDeadError, match="was lost"):
        send_for_ever(channel)
    started = time.monotonic()
    channel.close(60)
    assert time.monotonic() - started < 30


def send_for_ever(channel):
    while True:
        channel.send(Word("hello"))
        channel.receive(0.0)
