"""Listening sockets of this process: which there are, and how they admit no more connections."""

import os
import socket

import pytest

from quire.process.network.listening_sockets import admit_no_more, listening_sockets

HOST = "127.0.0.77"


@pytest.fixture
def listener():
    with socket.create_server((HOST, 0)) as listener:
        yield listener


def test_only_listening_sockets_of_the_address_are_found(listener):
    with (
        socket.create_connection(listener.getsockname()),
        socket.create_server(("127.0.0.78", 0)),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind((HOST, 0))
        assert list(listening_sockets(HOST).values()) == [listener.fileno()]


def test_a_new_socket_has_another_name_than_those_before(listener):
    before = listening_sockets(HOST)
    with socket.create_server((HOST, 0)) as another:
        after = listening_sockets(HOST)
        assert after.keys() > before.keys()
        assert [after[name] for name in after.keys() - before.keys()] == [another.fileno()]


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1"])
def test_an_ipv6_address_is_found_however_it_is_written(host):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        assert listener.fileno() in listening_sockets(host).values()


def test_looking_leaves_no_file_open(listener):
    num_open = len(os.listdir("/proc/self/fd"))
    listening_sockets(HOST)
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_connections_go_on_and_no_more_are_opened(listener):
    with socket.create_connection(listener.getsockname()) as connection:
        accepted, _ = listener.accept()
        admit_no_more(listener.fileno())
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), 0.2)
        with accepted:
            accepted.sendall(b"still here")
            assert connection.recv(100) == b"still here"


def test_what_is_no_socket_is_an_error():
    reader, writer = os.pipe()
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="socket"):
        admit_no_more(reader)
    assert len(os.listdir("/proc/self/fd")) == num_open
    os.close(reader)
    os.close(writer)
