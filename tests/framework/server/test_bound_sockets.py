"""Sockets of a server: bound before anything is loaded, and what they say about the address."""

import socket
from types import SimpleNamespace

import pytest

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server import bound_sockets
from quire.server.bound_sockets import bound_health_socket, bound_socket, is_loopback, url_of


@pytest.fixture
def taken():
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use_is_a_typed_error(taken):
    with pytest.raises(SettingsError, match=f"port {taken}.*--port"):
        bound_socket(ServerSettings(port=taken))


def test_a_socket_that_cannot_be_bound_is_closed(taken):
    listener = socket.socket()
    with pytest.raises(OSError, match="in use"):
        bound_sockets._bound(listener, ("127.0.0.1", taken))
    assert listener.fileno() == -1


def test_nobody_can_connect_before_the_server_listens():
    with bound_socket(ServerSettings(port=0)) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=5)


@pytest.mark.parametrize(
    ("host", "key", "is_open"),
    [("0.0.0.0", (), True), ("0.0.0.0", ("sesame",), False), ("127.0.0.1", (), False)],
)
def test_an_address_for_all_without_a_key_is_warned_of(caplog, host, key, is_open):
    bound_socket(ServerSettings(host=host, port=0, api_key=key)).close()
    assert ("no key is asked for" in caplog.text) is is_open


def test_of_several_addresses_the_ipv4_one_is_taken(monkeypatch):
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    for found in ([six, four], [four, six]):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: list(found))
        with bound_socket(ServerSettings(host="localhost", port=0)) as listener:
            assert listener.family == socket.AF_INET


def test_an_address_is_a_url():
    for address, url in (
        (("127.0.0.1", 80), "http://127.0.0.1:80"),
        (("::1", 8000, 0, 0), "http://[::1]:8000"),
    ):
        assert url_of(SimpleNamespace(getsockname=lambda given=address: given)) == url


def test_the_health_port_is_bound_early_and_closed_in_the_end():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"port {port}.*--health-port"),
            bound_health_socket(ServerSettings(health_port=port)),
        ):
            raise AssertionError("two sockets have one address")
    with bound_health_socket(ServerSettings(health_port=port)) as bound:
        assert bound.getsockname()[1] == port
    assert bound.fileno() == -1
    with bound_health_socket(ServerSettings()) as none:
        assert none is None


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_means_this_machine_only(host, wanted):
    assert is_loopback(host) is wanted
