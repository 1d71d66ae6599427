"""Sockets bound to the addresses of a server, before anything of it is loaded."""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterator
from typing import Any

from quire.config import ServerSettings
from quire.errors import SettingsError

logger = logging.getLogger(__name__)


def bound_socket(settings: ServerSettings) -> socket.socket:
    """Return a socket bound to the address of the settings, which does not listen yet.

    To be called before a model is loaded: a port that is in use is known at once, and clients are
    not kept waiting until the server is ready. Warns of an address that others can reach, if they
    need no key.

    Raises:
        SettingsError: The address cannot be bound.
    """
    bound = _bound_to(settings.host, settings.port, "--port (port 0 takes a free one)")
    if not settings.requires_key and not is_loopback(settings.host):
        logger.warning(
            "%s can be reached by other machines, and no key is asked for: set QUIRE_API_KEY, or "
            "--api-key-file",
            settings.host,
        )
    return bound


@contextlib.contextmanager
def bound_health_socket(settings: ServerSettings) -> Iterator[socket.socket | None]:
    """Yield a socket bound to `health_port`, closed at the end; None if there is none.

    Raises:
        SettingsError: The address cannot be bound.
    """
    if not settings.health_port:
        yield None
        return
    with _bound_to(settings.host, settings.health_port, "--health-port") as listener:
        yield listener


def _bound_to(host: str, port: int, flag: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,  # asyncio disables Nagle's algorithm only if it sees this
            flags=socket.AI_PASSIVE,
        )
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # "localhost": 127.0.0.1 first
        family, kind, protocol, _, address = found[0]
        return _bound(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error}; choose another address with --host and "
            f"{flag}"
        ) from error


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: Any) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
