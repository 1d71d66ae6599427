"""Network interfaces: which one has an address, and addresses that ranks do not listen on."""

import json
import shutil
import socket
import subprocess
from ipaddress import ip_address

import pytest

from quire.errors import SettingsError
from quire.machine import network_interfaces
from quire.machine.network_interfaces import interface_of, interfaces, listening_address

LOOPBACK = ip_address("127.0.0.1")


def test_the_loopback_interface_is_found():
    assert interfaces()[LOOPBACK] == "lo"
    assert [interface_of(text) for text in ("127.0.0.1", "127.0.0.7", "::1")] == ["lo"] * 3


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip of iproute2")
def test_addresses_are_those_that_the_system_lists():
    text = subprocess.run(["ip", "-json", "addr"], capture_output=True, check=True).stdout
    expected = {
        ip_address(address["local"]): link["ifname"]
        for link in json.loads(text)
        for address in link["addr_info"]
        if address["family"] == "inet" or address["scope"] != "link"
    }
    assert interfaces() == expected


def test_an_alias_is_its_interface_and_link_local_addresses_are_left_out(tmp_path, monkeypatch):
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
    )
    monkeypatch.setattr(network_interfaces, "IPV6_TABLE", table)
    found = {str(address): name for address, name in interfaces().items() if address.version == 6}
    assert found == {"::1": "lo", "fd00::2": "eth0"}


def test_a_system_without_the_second_protocol_has_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(network_interfaces, "IPV6_TABLE", tmp_path / "none")
    assert {address.version for address in interfaces()} == {4}


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.9"])
def test_an_address_of_this_machine_can_be_listened_on(text):
    assert str(listening_address(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.0.0.0", "do not listen on 0.0.0.0, because their ports are not authenticated"),
        ("::", "do not listen on ::"),
        ("::ffff:0.0.0.0", "do not listen on ::ffff:0.0.0.0"),
        ("203.0.113.77", "cannot listen on 203.0.113.77: Cannot assign requested address"),
        ("localhost", "'localhost' is not an IP address"),
        ("", "'' is not an IP address"),
        ("10.0.0.1:80", "'10.0.0.1:80' is not an IP address"),
    ],
)
def test_other_addresses_are_refused_with_those_that_there_are(text, message):
    with pytest.raises(SettingsError, match=message) as caught:
        listening_address(text)
    assert "127.0.0.1 on lo" in str(caught.value)


def test_an_address_of_a_family_that_the_system_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(network_interfaces, "family_of", lambda address: socket.AF_X25)
    with pytest.raises(SettingsError, match="cannot listen on ::1: Address family not supported"):
        listening_address("::1")


def test_an_address_of_no_interface_is_named():
    with pytest.raises(SettingsError, match=r"has the address 203\.0\.113\.77; there are 127\.0"):
        interface_of("203.0.113.77")
