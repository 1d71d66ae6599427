"""Attacks on the port of a hub: nothing is decoded, and the true peers are served."""

import os
import pickle
import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import zmq
from hub_ends import KEY, TCP, Word, check_serves, joined, next_lost, port_of
from processes import eventually
from recording_proxy import RecordingProxy

from quire.errors import EngineDeadError
from quire.process.launch_key import LaunchKey
from quire.process.network import secure_socket
from quire.process.network.network_hub import NetworkHub

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
FOREIGN = LaunchKey.new()


def greeting(mechanism):
    return SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


class Detonator:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


@pytest.fixture
def ends():
    """A hub, with a true peer that an attack must not disturb."""
    hub = NetworkHub(Word, TCP, KEY)
    channel, peer = joined(hub)
    assert hub.lost() == []
    yield hub, channel, peer
    channel.close()
    hub.close()


def check_undisturbed(hub, channel, peer):
    """Check that nothing has arrived, no peer is lost, and peers old and new are served."""
    assert hub.take(0.3) is None
    assert hub.lost() == []
    check_serves(hub, channel, peer)
    another, its_peer = joined(hub)
    check_serves(hub, another, its_peer)
    another.close()
    assert next_lost(hub) == [its_peer]


def memory_bytes():
    """Return the memory that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def is_closed(connection, timeout_s=5):
    """Whether the other end closes a connection, whatever it sends before."""
    connection.settimeout(timeout_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def dealer(context, **options):
    """Return a socket as any program with ZeroMQ may make one."""
    made = context.socket(zmq.DEALER)
    made.linger = 0
    for name, value in options.items():
        setattr(made, name, value)
    return made


STRANGERS = {
    "no key": {},
    "a password": {"plain_username": b"quire", "plain_password": KEY.text.encode()},
    "a foreign key": {
        "curve_serverkey": FOREIGN.listener.public,
        "curve_publickey": FOREIGN.joiner.public,
        "curve_secretkey": FOREIGN.joiner.secret,
    },
    "the listener's public key only": {
        "curve_serverkey": KEY.listener.public,
        "curve_publickey": FOREIGN.joiner.public,
        "curve_secretkey": FOREIGN.joiner.secret,
    },
    "the public keys only": {
        "curve_serverkey": KEY.listener.public,
        "curve_publickey": KEY.joiner.public,
        "curve_secretkey": FOREIGN.joiner.secret,
    },
    "the name of a peer": {"routing_id": b"rank 0"},
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_with_zeromq_is_not_heard(ends, stranger):
    hub, channel, peer = ends
    with zmq.Context() as context, dealer(context, **STRANGERS[stranger]) as attacker:
        attacker.connect(hub.address)
        attacker.send(msgspec.msgpack.encode(Word("let me in")))
        assert not attacker.poll(300)
        check_undisturbed(hub, channel, peer)


def test_a_stranger_with_the_key_is_heard(ends):
    hub, channel, peer = ends
    options = {
        "curve_serverkey": KEY.listener.public,
        "curve_publickey": KEY.joiner.public,
        "curve_secretkey": KEY.joiner.secret,
    }
    with zmq.Context() as context, dealer(context, **options) as attacker:
        attacker.connect(hub.address)
        attacker.send(msgspec.msgpack.encode(Word("let me in")))
        assert hub.take(10)[1] == Word("let me in")
        check_serves(hub, channel, peer)


def payloads(tmp_path):
    """Bytes that strangers send, and whether the hub closes the connection at once."""
    gadget = pickle.dumps(Detonator(tmp_path / "exploded"))
    message = msgspec.msgpack.encode(Word("let me in"))
    frame = b"\0" + bytes([len(message)]) + message
    return {
        "random bytes": bytes([0x13]) + os.urandom(5000),
        "random bytes like ZeroMQ": SIGNATURE + b"\x03" + os.urandom(5000),
        "zeros": bytes(10_000),
        "a pickle": gadget,
        "a pickle in a frame": greeting(b"CURVE") + b"\0" + bytes([len(gadget)]) + gadget,
        "HTTP": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        "TLS": bytes.fromhex("16030100c8010000c40303") + os.urandom(200),
        "a message of ZeroMQ 2": b"\x01\0" + frame,
        "no mechanism": greeting(b"NULL") + b"\x04\x19\x05READY" + bytes(18) + frame,
        "a message before the handshake": greeting(b"CURVE") + frame,
        "a made-up handshake": greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + os.urandom(194),
        "a frame of 1 GB": greeting(b"CURVE") + b"\x02" + (2**30).to_bytes(8, "big"),
        "a frame of 16 exabytes": greeting(b"CURVE") + b"\x02" + b"\xff" * 8,
    }


@pytest.mark.parametrize("name", payloads(Path()))
def test_bytes_of_a_stranger_end_only_its_own_connection(ends, name, tmp_path):
    hub, channel, peer = ends
    with socket.create_connection(("127.0.0.1", port_of(hub))) as attacker:
        attacker.sendall(payloads(tmp_path)[name])
        assert is_closed(attacker)
    check_undisturbed(hub, channel, peer)
    assert not (tmp_path / "exploded").exists()


def test_a_gigabyte_in_one_frame_is_not_stored(ends):
    hub, channel, peer = ends
    before = memory_bytes()
    with socket.create_connection(("127.0.0.1", port_of(hub))) as attacker:
        attacker.sendall(greeting(b"CURVE") + b"\x02" + (2**30).to_bytes(8, "big"))
        zeros = bytes(2**20)
        with pytest.raises(ConnectionError):  # noqa: PT012 - some of them reach the socket's buffer
            for _ in range(1024):
                attacker.sendall(zeros)
    assert memory_bytes() - before < 32 * 2**20
    check_undisturbed(hub, channel, peer)


def test_many_frames_that_are_just_allowed_are_not_stored_for_strangers(ends):
    hub, channel, peer = ends
    before = memory_bytes()
    size = secure_socket.PIECE_BYTES
    with ExitStack() as stack:
        for _ in range(50):
            attacker = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(hub))))
            attacker.sendall(greeting(b"CURVE") + b"\x02" + size.to_bytes(8, "big"))
            attacker.sendall(bytes(size - 1))
        assert memory_bytes() - before < 100 * size
        check_undisturbed(hub, channel, peer)


def test_a_peer_with_a_frame_that_is_too_long_is_lost(ends):
    hub, channel, peer = ends
    another, its_peer = joined(hub)
    another._socket.send(bytes(secure_socket.PIECE_BYTES + 2000))
    assert next_lost(hub) == [its_peer]
    assert hub.take(0.2) is None
    with pytest.raises(EngineDeadError, match="was lost"):
        another.receive(10)
    another.close()
    check_undisturbed(hub, channel, peer)


@pytest.fixture
def proxied(ends):
    """A hub, its true peer, and another peer behind a recording proxy."""
    hub, *_ = ends
    proxy = RecordingProxy(port_of(hub))
    another, its_peer = joined(hub, proxy.address)
    assert hub.lost() == []
    yield proxy, another, its_peer
    another.close()
    proxy.close()


def test_a_recorded_connection_that_is_repeated_says_nothing(ends, proxied):
    hub, channel, peer = ends
    proxy, another, its_peer = proxied
    check_serves(hub, another, its_peer)
    with socket.create_connection(("127.0.0.1", port_of(hub))) as attacker:
        with suppress(ConnectionError):  # the hub closes it on the way
            for chunk in list(proxy.recorded):
                attacker.sendall(chunk)
                time.sleep(0.02)
        assert is_closed(attacker)
    check_serves(hub, another, its_peer)
    check_undisturbed(hub, channel, peer)


def test_a_recording_shows_nothing_of_a_message(ends, proxied):
    hub, *_ = ends
    proxy, another, its_peer = proxied
    another.send(Word("a secret prompt"))
    assert hub.take(10) == (its_peer, Word("a secret prompt"))
    assert b"secret" not in b"".join(proxy.recorded)


@pytest.mark.parametrize("change", ["repeated", "altered", "random"])
def test_a_message_that_a_proxy_sends_is_not_decoded(ends, proxied, change):
    hub, channel, peer = ends
    proxy, another, its_peer = proxied
    num_recorded = len(proxy.recorded)
    another.send(Word("pay 1"))
    assert hub.take(10) == (its_peer, Word("pay 1"))
    frame = b"".join(proxy.recorded[num_recorded:])
    altered = frame[:-1] + bytes([frame[-1] ^ 1])
    proxy.send({"repeated": frame, "altered": altered, "random": os.urandom(300)}[change])
    assert next_lost(hub) == [its_peer]
    assert hub.take() is None
    with pytest.raises(EngineDeadError, match="was lost"):
        another.receive(10)
    check_undisturbed(hub, channel, peer)


@pytest.fixture
def num_files():
    """Number of files that this process may open at least, raised for this test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < before[1]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_thousand_connections_that_say_nothing_hinder_no_peer_and_are_closed(ends, num_files):
    hub, channel, peer = ends
    before = memory_bytes()
    num_silent = min(1000, num_files // 2 - 200)  # both ends are in this process
    assert num_silent > 100
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(hub))))
            for _ in range(num_silent)
        ]
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(hub))))
        check_undisturbed(hub, channel, peer)
        assert memory_bytes() - before < 64 * 2**20
        started = time.monotonic()
        for byte in greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(1000):
            try:
                slow.sendall(bytes([byte]))
            except ConnectionError:
                break
            time.sleep(0.05)
            assert time.monotonic() - started < 30
        assert all(is_closed(connection) for connection in silent)
        check_undisturbed(hub, channel, peer)


def test_strangers_who_come_and_go_wake_the_engine_rarely(ends):
    hub, *_ = ends
    hub.wait(1.5)
    hub.lost()
    num_wakes, deadline = 0, time.monotonic() + 1
    while time.monotonic() < deadline:
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port_of(hub))).close()
        hub.wait(0.0)
        num_wakes += hub._entrance.disconnections.clear()
    assert num_wakes < 20


def test_a_port_that_has_stopped_listening_keeps_its_connections(ends):
    hub, channel, peer = ends
    hub.stop_listening()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port_of(hub)), 0.5)
    check_serves(hub, channel, peer)
    channel.close()
    assert next_lost(hub) == [peer]


def test_a_closed_hub_frees_its_port_whatever_strangers_do():
    hub = NetworkHub(Word, TCP, KEY)
    with socket.create_connection(("127.0.0.1", port_of(hub))) as attacker:
        attacker.sendall(SIGNATURE)
        hub.close()
        again = NetworkHub(Word, hub.address, KEY)
        again.close()
        eventually(lambda: is_closed(attacker, 0.1))
