"""Connections that are not authenticated: a limited number, and never at the expense of others."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hub_ends import KEY, TCP, Word, check_serves, joined, port_of
from processes import path_with

from quire.process.network.half_open import HalfOpenConnections
from quire.process.network.network_channel import NetworkChannel
from quire.process.network.network_hub import NetworkHub


@pytest.fixture
def connections():
    """Make accepted connections; each is a pair of our end and the other."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def make(number):
            pairs = []
            for _ in range(number):
                other = stack.enter_context(socket.create_connection(server.getsockname(), 5))
                ours = stack.enter_context(server.accept()[0])
                pairs.append((ours, other))
            return pairs

        make.port = server.getsockname()[1]
        yield make


def has_ended(other):
    other.setblocking(False)
    try:
        return other.recv(1) == b""
    except BlockingIOError:
        return False


def watch(half_open, pairs):
    for ours, _ in pairs:
        half_open.add(ours.fileno())


def ends(pairs):
    return [has_ended(other) for _, other in pairs]


def test_the_oldest_that_say_too_little_are_ended(connections):
    pairs = connections(5)
    pairs[1][1].sendall(bytes(400))
    watch(HalfOpenConnections(connections.port, 3), pairs)
    assert ends(pairs) == [True, True, False, False, False]


def test_one_that_has_completed_the_handshake_goes_on(connections):
    pairs = connections(5)
    pairs[0][1].sendall(bytes(600))
    half_open = HalfOpenConnections(connections.port, 3)
    watch(half_open, pairs)
    assert ends(pairs) == [False, True, False, False, False]
    watch(half_open, connections(2))
    assert not has_ended(pairs[0][1])  # it is not looked at again


def test_those_that_have_ended_do_not_count(connections):
    pairs = connections(4)
    half_open = HalfOpenConnections(connections.port, 3)
    watch(half_open, pairs[:3])
    half_open.remove(pairs[1][0].fileno())
    half_open.remove(10**6)
    watch(half_open, pairs[3:])
    assert ends(pairs) == [False] * 4


def test_a_number_that_is_another_file_by_now_is_left_alone(connections):
    (ours, other), *_ = connections(1)
    half_open = HalfOpenConnections(connections.port + 1, 1)
    reader, writer = os.pipe()
    closed = os.dup(reader)
    os.close(closed)
    for fd in (ours.fileno(), reader, closed, writer):
        half_open.add(fd)
    assert not has_ended(other)
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_a_number_that_is_used_again_is_the_newest(connections):
    pairs = connections(4)
    half_open = HalfOpenConnections(connections.port, 3)
    watch(half_open, pairs[:3])
    watch(half_open, [pairs[0]])
    watch(half_open, pairs[3:])
    assert ends(pairs) == [False, True, False, False]


ENGINE = """
import os, resource, sys
from hub_ends import TCP, Word
from quire.process.network.network_hub import NetworkHub
from quire.process.launch_key import LaunchKey
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
hub = NetworkHub(Word, TCP, LaunchKey.read("-", 10))
print(hub.address, flush=True)
while True:
    hub.wait(0.005)
    os.close(os.open("/dev/null", os.O_RDONLY))
    if (received := hub.take()) is not None:
        hub.send([received[0]], received[1])
"""


@contextmanager
def engine_with_few_files():
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path_with(Path(__file__).parents[3] / "parts")},
    )
    try:
        process.stdin.write(KEY.text + "\n")
        process.stdin.flush()
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def keep_silent(stack, port):
    """Open more connections than the engine may have files, in bursts, and say nothing."""
    for number in range(600):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        if number % 50 == 0:
            time.sleep(0.02)


def test_strangers_who_say_nothing_leave_the_process_its_files_and_others_the_port():
    with engine_with_few_files() as (process, address), ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        keep_silent(stack, port)
        channel = NetworkChannel(Word, address, KEY)
        channel.connect(10)
        keep_silent(stack, port)
        channel.send(Word("still here"))
        assert channel.receive(10) == Word("still here")
        assert process.poll() is None, process.stderr.read()
        channel.close()


def test_peers_are_not_ended_for_strangers_who_come_later(monkeypatch):
    monkeypatch.setattr("quire.process.network.half_open._MAX_CONNECTIONS", 1)
    hub = NetworkHub(Word, TCP, KEY)
    ends = [joined(hub) for _ in range(3)]
    for _ in range(20):
        socket.create_connection(("127.0.0.1", port_of(hub))).close()
    for channel, peer in ends:
        check_serves(hub, channel, peer)
        channel.close()
    hub.close()
