"""Heads of HTTP requests: their checks, and the ASGI scope that describes one.

Whatever two parsers of HTTP could read differently is refused, since a proxy in front of this
server may be the other one: a second `Host`, an older version with a transfer coding. (The parser
itself refuses a length beside a transfer coding, and two lengths.)
"""

from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.types import Scope

from quire.server.wire.http_errors import HTTPError

MAX_HEAD_BYTES = 64 * 1024
Headers = list[tuple[bytes, bytes]]
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Head(NamedTuple):
    """The head of a request.

    Attributes:
        method: Method.
        target: Path and query; or an asterisk.
        headers: Headers, with names in lower case.
        version: Version of HTTP, "1.1" or "1.0".
    """

    method: str
    target: bytes
    headers: Headers
    version: str

    def scope(self, **further: Any) -> Scope:
        """Return the ASGI scope of the request, with further entries."""
        raw_path, _, query = self.target.partition(b"?")
        path = raw_path.decode("latin-1")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "method": self.method,
            "scheme": "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            **further,
        }


def bad_request(message: str, status: int = 400, code: str = "bad_request") -> HTTPError:
    """Return the error of data that is no HTTP request that can be served."""
    return HTTPError(status, message, code=code, headers={"connection": "close"})


def head_too_large() -> HTTPError:
    """Return the error of a head that is larger than `MAX_HEAD_BYTES`."""
    message = f"the request's head is larger than {MAX_HEAD_BYTES} bytes"
    return bad_request(message, 431, "head_too_large")


def checked_head(method: bytes, target: bytes, headers: Headers, version: str) -> Head:
    """Return the head of a request.

    Args:
        method: Method.
        target: Request target: in origin form, in absolute form or an asterisk.
        headers: Headers, with names in lower case; a host in the target replaces theirs.
        version: Version of HTTP.

    Raises:
        HTTPError: The head is no valid one.
    """
    if version not in ("1.1", "1.0"):
        raise bad_request(f"HTTP {version} is not supported; use HTTP 1.1")
    if method == b"CONNECT":
        raise bad_request("this server is no proxy", 405, "method_not_allowed")
    _check_headers(headers, version)
    if target[:1] != b"/" and target != b"*":
        target, host = _split_absolute(target)
        headers = [(b"host", host), *(pair for pair in headers if pair[0] != b"host")]
    return Head(method.decode("latin-1"), target, headers, version)


def _check_headers(headers: Headers, version: str) -> None:
    num_hosts = 0
    for name, value in headers:
        if name == b"host":
            num_hosts += 1
        elif name == b"transfer-encoding" and version == "1.0":
            raise bad_request("a transfer coding needs HTTP 1.1")
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise bad_request("no transfer coding but chunked is supported", 501, "not_supported")
    if num_hosts != 1 and (num_hosts or version == "1.1"):
        raise bad_request(f"a request must have one Host header, and this one has {num_hosts}")


def _split_absolute(target: bytes) -> tuple[bytes, bytes]:
    """Return the origin form, and the host, of a target in absolute form (RFC 9112, 3.2.2)."""
    try:
        url = urlsplit(target.decode("ascii"))
    except ValueError:
        raise bad_request("the request target is not valid") from None
    if url.scheme not in ("http", "https") or not url.netloc or "@" in url.netloc:
        raise bad_request("the request target must begin with / or with http://HOST")
    path = url.path or "/"
    return (f"{path}?{url.query}" if url.query else path).encode(), url.netloc.encode()
