"""Addresses of the hub: parsed, resolved, and never all interfaces at once."""

import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from quire.errors import SettingsError

SCHEME = "tcp://"
MAX_PORT = 65535
_NOT_OF_HOSTS = re.compile(r"[\s:/\[\]@]")


@dataclass(frozen=True)
class TcpAddress:
    """Address of a listening socket.

    Attributes:
        host: Name or IP address; an IPv6 address without brackets.
        port: Port; 0 to listen on any that is free.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address that is written as `HOST:PORT`, with or without `tcp://`.

        Raises:
            SettingsError: It is written otherwise.
        """
        host, colon, port = text.removeprefix(SCHEME).rpartition(":")
        if not colon or not _is_host(host) or not port.isascii() or not port.isdigit():
            raise _no_address(text, "HOST:PORT")
        if int(port) > MAX_PORT:
            raise SettingsError(f"port {port} of {text!r} is more than {MAX_PORT}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @classmethod
    def parse_listening(cls, text: str) -> Self:
        """Return the address to listen on that is written as `HOST` or as `HOST:PORT`.

        An IPv6 address alone needs no brackets. Without a port it is 0, any that is free.

        Raises:
            SettingsError: It is written otherwise.
        """
        host = text.removeprefix(SCHEME)
        if _is_ipv6(host) or _is_host(host):
            return cls(host.removeprefix("[").removesuffix("]"), 0)
        if ":" not in host:
            raise _no_address(text, "HOST or HOST:PORT")
        return cls.parse(text)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}{host}:{self.port}"

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 address."""
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """Whether the host is an address that only this machine has."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False

    def to_listen_on(self) -> Self:
        """Return the address with the host's IP address.

        Raises:
            SettingsError: The host is unknown, or stands for all interfaces.
        """
        if self.host == "*":
            raise _all_interfaces(self)
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SettingsError(f"the host of {self} has no address: {error}") from error
        resolved = type(self)(str(found[0][4][0]), self.port)
        if _is_unspecified(resolved.host):
            raise _all_interfaces(self)
        return resolved


def _is_host(text: str) -> bool:
    """Whether a text is a name, an IPv4 address, or an IPv6 address in brackets."""
    if text.startswith("[") and text.endswith("]"):
        return _is_ipv6(text[1:-1])
    return bool(text) and not _NOT_OF_HOSTS.search(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _no_address(text: str, form: str) -> SettingsError:
    return SettingsError(
        f"{text!r} is no address; write {form}, with an IPv6 address in brackets: [::1]:4711"
    )


def _is_unspecified(host: str) -> bool:
    ip = ipaddress.ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return ip.is_unspecified or (mapped is not None and mapped.is_unspecified)


def _all_interfaces(address: TcpAddress) -> SettingsError:
    return SettingsError(
        f"{address} is the address of all interfaces; give the one by which the other machines "
        "reach this one"
    )
