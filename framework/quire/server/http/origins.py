"""Checks of the headers by which a browser says for which web page it sends a request.

A page may reach a server on a loopback address by a name that was rebound to it, so such a server
takes only its own names. A page of another origin may read only what the browser shows it, which
without CORS headers is nothing, and may change nothing.
"""

from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import Scope

from quire.server.bound_sockets import is_loopback
from quire.server.wire.headers import header_values
from quire.server.wire.http_errors import HTTPError

MAX_HOST_CHARACTERS = 256


def check_host(scope: Scope) -> None:
    """Refuse a foreign Host on a loopback address.

    Raises:
        HTTPError: A Host header names another machine.
    """
    for value in header_values(scope, b"host"):
        if len(value) > MAX_HOST_CHARACTERS or not _names_loopback(value):
            raise HTTPError(
                403,
                "this server listens on a loopback address and accepts no other Host; "
                "call it as 127.0.0.1 or localhost, or start it with --host",
                code="forbidden_host",
            )


@lru_cache(maxsize=256)  # nearly all requests have the same
def _names_loopback(value: str) -> bool:
    return _is_netloc(value) and is_loopback(urlsplit(f"//{value}").hostname or "")


def check_origin(scope: Scope) -> None:
    """Refuse requests that a browser sends for a web page of another origin.

    Raises:
        HTTPError: An Origin header names another origin than the Host.
    """
    origins = header_values(scope, b"origin")
    if not origins:
        return
    hosts = [value.lower() for value in header_values(scope, b"host")]
    for origin in origins:
        scheme, _, netloc = origin.lower().partition("://")
        if scheme not in ("http", "https") or netloc not in hosts:
            raise HTTPError(
                403,
                "requests from web pages of another origin are refused",
                code="forbidden_origin",
            )


def _is_netloc(value: str) -> bool:
    """Whether a Host header is only a host and an optional port."""
    try:
        parts = urlsplit(f"//{value}")
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        return False
    return parts.netloc == value and "@" not in value
