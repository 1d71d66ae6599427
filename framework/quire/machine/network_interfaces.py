"""Network interfaces of this machine, and the address of one of them on which ranks listen."""

import fcntl
import socket
import struct
from array import array
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from quire.errors import SettingsError

SIOCGIFCONF = 0x8912  # of Linux: the IPv4 addresses of all interfaces
REQUEST = struct.Struct("16s H 2x 4s 16x")  # name, address family, IPv4 address
LIST = struct.Struct("@iP")  # size and address of the room for them
MAX_REQUESTS = 256
IPV6_TABLE = Path("/proc/net/if_inet6")
LINK_LOCAL = "20"  # scope of addresses that are nothing without an interface

IPAddress = IPv4Address | IPv6Address


def listening_address(text: str) -> IPAddress:
    """Return an address of this machine on which ranks may listen.

    Raises:
        SettingsError: It is not an IP address, or one of all interfaces, or not this machine's.
    """
    address = _parsed(text)
    if _is_unspecified(address):
        raise SettingsError(
            f"ranks do not listen on {text}, because their ports are not authenticated; name "
            f"the address of the interface that connects the machines ({_own_addresses()})"
        )
    try:
        with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:  # also of a system without IPv6
        raise SettingsError(
            f"ranks cannot listen on {text}: {error.strerror}; this machine has {_own_addresses()}"
        ) from error
    return address


def interface_of(text: str) -> str:
    """Return the name of the interface that has an address.

    Raises:
        SettingsError: It is not an address of this machine.
    """
    address, found = _parsed(text), interfaces()
    if address.is_loopback:
        address = ip_address("127.0.0.1")
    if address not in found:
        raise SettingsError(
            f"no interface of this machine has the address {text}; there are {_own_addresses()}"
        )
    return found[address]


def interfaces() -> dict[IPAddress, str]:
    """Return the name of the interface of each address, without link-local ones of IPv6."""
    return _ipv4_interfaces() | _ipv6_interfaces()


def family_of(address: IPAddress) -> socket.AddressFamily:
    """Return the address family of sockets for an address."""
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def _parsed(text: str) -> IPAddress:
    try:
        return ip_address(text)
    except ValueError as error:
        raise SettingsError(
            f"{text!r} is not an IP address; ranks listen on the address of one interface "
            f"({_own_addresses()})"
        ) from error


def _is_unspecified(address: IPAddress) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def _own_addresses() -> str:
    found = interfaces().items()
    return ", ".join(f"{address} on {name}" for address, name in found) or "no address"


def _ipv4_interfaces() -> dict[IPAddress, str]:
    room = array("B", bytes(MAX_REQUESTS * REQUEST.size))
    start, size = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFCONF, LIST.pack(size, start))
    used, _ = LIST.unpack(answer)
    return {
        IPv4Address(address): name.rstrip(b"\0").split(b":")[0].decode()  # eth0:1 is an alias
        for name, _, address in REQUEST.iter_unpack(room[:used])
    }


def _ipv6_interfaces() -> dict[IPAddress, str]:
    with suppress(OSError):
        rows = [line.split() for line in IPV6_TABLE.read_text().splitlines()]
        return {IPv6Address(int(row[0], 16)): row[5] for row in rows if row[3] != LINK_LOCAL}
    return {}
