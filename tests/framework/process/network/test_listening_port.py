"""A port that stops listening while its connections go on."""

import os
import socket

import pytest

from quire.errors import QuireError
from quire.process.network.listening_port import ListeningPort
from quire.process.network.tcp_address import TcpAddress


@pytest.fixture
def port():
    port = ListeningPort(TcpAddress("127.0.0.1", 0))
    yield port
    port.close()


def connect(port):
    return socket.create_connection((port.address.host, port.address.port), 0.3)


def test_the_address_has_the_port_that_was_free(port):
    assert port.address.host == "127.0.0.1"
    assert port.address.port > 0
    connect(port).close()


def test_no_connection_can_be_opened_after_the_end(port):
    with connect(port) as connection:
        with socket.socket(fileno=port.duplicate()) as duplicate:
            accepted, _ = duplicate.accept()
        port.stop()
        with pytest.raises(TimeoutError):
            connect(port)
        with accepted:
            accepted.sendall(b"still here")
            assert connection.recv(100) == b"still here"


def test_a_system_without_packet_filters_is_logged(port, caplog):
    port.close()  # so that the system refuses the filter
    port.stop()
    assert f"{port.address} stays open" in caplog.text
    assert "only those with the launch key" in caplog.text


def test_the_port_is_open_until_its_last_descriptor_is_closed(port):
    duplicate = port.duplicate()
    port.close()
    connect(port).close()
    os.close(duplicate)
    with pytest.raises(ConnectionRefusedError):
        connect(port)


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_an_address_of_another_machine_is_named(host):
    address = TcpAddress(host, 5)
    with pytest.raises(QuireError, match="cannot be opened at") as error:
        ListeningPort(address)
    assert f"{address}: " in str(error.value)


def test_an_occupied_port_is_named(port):
    with pytest.raises(QuireError, match=f"at {port.address}: Address already in use"):
        ListeningPort(port.address)
