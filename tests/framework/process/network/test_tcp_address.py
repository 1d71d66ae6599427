"""Addresses of the hub: parsed as they are printed, resolved, and never all interfaces."""

import pytest

from quire.errors import SettingsError
from quire.process.network.tcp_address import TcpAddress


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://10.0.0.1:4711", "10.0.0.1", 4711),
        ("tcp://node-1.cluster.local:0", "node-1.cluster.local", 0),
        ("tcp://[fe80::1]:65535", "fe80::1", 65535),
    ],
)
def test_an_address_is_printed_as_it_was_written(text, host, port):
    address = TcpAddress.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text
    assert address.is_ipv6 == ("[" in text)


@pytest.mark.parametrize("text", ["10.0.0.1:4711", "node-1:0", "[fe80::1]:65535", "[::1]:4711"])
def test_the_scheme_may_be_left_out(text):
    assert str(TcpAddress.parse(text)) == f"tcp://{text}"
    assert TcpAddress.parse_listening(text) == TcpAddress.parse(text)
    assert TcpAddress.parse_listening(f"tcp://{text}") == TcpAddress.parse(text)


NO_ADDRESSES = [
    *("", "tcp://", "tcp://:1", "tcp://a:", "tcp://a:x", "tcp://a:-1", "tcp://a:1.0", "a:²"),
    *("tcp://tcp://a:1", "http://a:1", "a/b:1", "a b:1", "user@a:1", "::1:4711:x", "1::2::3:5"),
    *("[::1", "[a]:1", "[]:1", "[::1]4711", "[[::1]]:1", ":1"),
]


@pytest.mark.parametrize("text", [*NO_ADDRESSES, "tcp://a", "a", "foo", "::1", "::1:4711", "[::1]"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(SettingsError, match=r"is no address; write HOST:PORT, .*\[::1\]:4711") as e:
        TcpAddress.parse(text)
    assert str(e.value).startswith(repr(text))


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("node-1.cluster.local", "node-1.cluster.local"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("fd00::2:4711", "fd00::2:4711"),
        ("tcp://10.0.0.1", "10.0.0.1"),
        ("*", "*"),  # is refused when it is listened on
    ],
)
def test_an_address_to_listen_on_needs_no_port(text, host):
    assert TcpAddress.parse_listening(text) == TcpAddress(host, 0)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_to_listen_on_is_refused(text):
    with pytest.raises(SettingsError, match=r"is no address; write HOST"):
        TcpAddress.parse_listening(text)


def test_a_port_that_does_not_exist_is_refused():
    with pytest.raises(SettingsError, match=r"port 65536 of .* is more than 65535"):
        TcpAddress.parse("tcp://host:65536")


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "0", "0x0", "[::]", "[::ffff:0.0.0.0]", "[0::0]"])
def test_all_interfaces_are_refused_however_they_are_written(host):
    with pytest.raises(SettingsError, match="address of all interfaces"):
        TcpAddress.parse(f"tcp://{host}:1").to_listen_on()


def test_a_name_is_resolved():
    assert str(TcpAddress.parse("tcp://localhost:5").to_listen_on()) in (
        "tcp://127.0.0.1:5",
        "tcp://[::1]:5",
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "192.0.2.7"])
def test_an_ip_address_stays_as_it_is(host):
    text = f"tcp://{host}:5"
    assert str(TcpAddress.parse(text).to_listen_on()) == text


@pytest.mark.parametrize("host", ["no-such-host.invalid", "eth0.invalid", "a" * 70])
def test_an_unknown_host_is_named(host):
    with pytest.raises(SettingsError, match=f"the host of tcp://{host}:5 has no address"):
        TcpAddress.parse(f"tcp://{host}:5").to_listen_on()
