"""What listens at an address: an engine, something else, or nothing."""

import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import zmq
from hub_ends import KEY, TCP, Word

from quire.errors import QuireError, SettingsError
from quire.process.network import listener_check
from quire.process.network.listener_check import Listener, reachable_listener
from quire.process.network.network_hub import NetworkHub
from quire.process.network.tcp_address import TcpAddress


def local(port):
    return TcpAddress("127.0.0.1", port)


@contextmanager
def answering(answer):
    """Return the port of a server that answers each connection in some way."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_engine_is_found_by_its_name():
    hub = NetworkHub(Word, TCP, KEY)
    address = TcpAddress.parse(hub.address)
    found = reachable_listener(TcpAddress("localhost", address.port), 10)
    assert found == Listener(address, "127.0.0.1")
    hub.close()


def test_where_nothing_listens_the_reason_is_said():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(QuireError, match=r"within 0\.1 s: Connection refused"):
            reachable_listener(local(port), 0.1)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70])
def test_an_unknown_host_is_said(host):
    with pytest.raises(QuireError, match=f"tcp://{host}:5 cannot be reached"):
        reachable_listener(TcpAddress(host, 5), 0.0)


def test_a_web_server_is_no_engine():
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    with pytest.raises(SettingsError, match="is no engine of quire"):
        reachable_listener(local(server.server_port), 0.5)
    thread.join()
    server.server_close()


@pytest.mark.parametrize("mechanism", ["null", "plain"])
def test_another_program_with_zeromq_is_no_engine(mechanism):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.plain_server = mechanism == "plain"
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(SettingsError, match="is no engine of quire"):
            reachable_listener(local(port), 60)


def test_a_server_that_says_something_first_is_no_engine():
    with (
        answering(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port,
        pytest.raises(SettingsError, match="is no engine of quire"),
    ):
        reachable_listener(local(port), 60)


def test_a_proxy_without_an_engine_is_waited_for():
    with (
        answering(lambda connection: None) as port,
        pytest.raises(QuireError, match="closes the connection without an answer"),
    ):
        reachable_listener(local(port), 0.6)


def test_a_server_that_is_silent_is_waited_for():
    def keep(connection):
        while connection.recv(1000):
            pass

    with (
        answering(keep) as port,
        pytest.raises(QuireError, match="it accepts connections and does not answer"),
    ):
        reachable_listener(local(port), 0.1)


def test_a_server_that_answers_byte_by_byte_is_given_the_time_once():
    def dribble(connection):
        with suppress(OSError):
            for byte in b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0"):
                connection.sendall(bytes([byte]))
                time.sleep(0.1)

    started = time.monotonic()
    with (
        answering(dribble) as port,
        pytest.raises(QuireError, match=r"within 0\.6 s: it begins to answer and does not go on"),
    ):
        reachable_listener(local(port), 0.6)
    assert time.monotonic() - started < 2.5  # byte by byte it would take 3.3 s, and more for two


def test_an_engine_that_comes_later_is_found(monkeypatch):
    monkeypatch.setattr(listener_check, "RETRY_S", 0.05)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
    hubs = []
    timer = threading.Timer(0.3, lambda: hubs.append(NetworkHub(Word, address, KEY)))
    timer.start()
    assert reachable_listener(TcpAddress.parse(address), 60).local_host == "127.0.0.1"
    timer.join()
    hubs[0].close()
