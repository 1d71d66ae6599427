"""Parsing of HTTP/1.1 requests from the bytes of a connection, with limits on what is no body.

httptools (llhttp, the parser of Node.js) does the work, in a small part of the time of h11. A body
that follows an offer to change the protocol (`Upgrade: h2c`, which Java's client sends with every
request) would be taken for data of that protocol, so its parser is replaced by one that reads it.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import httptools

from quire.server.http.request_head import (
    MAX_HEAD_BYTES,
    Head,
    Headers,
    bad_request,
    checked_head,
    head_too_large,
)

MAX_FRAMING = 16  # bytes around each byte of a body, above those that a head may have
_Callback = TypeVar("_Callback", bound=Callable[..., Any])
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class RequestSink(Protocol):
    """What the requests are reported to."""

    def on_begin(self) -> None:
        """A request begins."""

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        """Its head is complete.

        Raises:
            HTTPError: The request is refused, and with it the connection.
        """

    def on_body(self, data: bytes) -> None:
        """A piece of its body has arrived."""

    def on_end(self) -> None:
        """It is complete."""


def _keeps_error(callback: _Callback) -> _Callback:
    """Keep the error of a callback: the parser's own may name another as its context."""

    @functools.wraps(callback)
    def keeping(parser: "RequestParser", *args: bytes) -> None:
        try:
            callback(parser, *args)
        except BaseException as error:
            parser._callback_error = error
            raise

    return cast("_Callback", keeping)


class RequestParser:
    """Parses the requests of one connection.

    Args:
        sink: Receiver of the requests.

    Attributes:
        is_in_head: Whether a request has begun whose head is not complete.
    """

    def __init__(self, sink: RequestSink) -> None:
        self.is_in_head = False
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: Headers = []
        self._num_head_bytes = 0
        self._num_body_bytes = 0
        self._num_framing_bytes = 0
        self._pieces: list[bytes] = []  # of a body, from what is being parsed
        self._body_head: bytes | None = None  # of the request whose body another parser reads
        self._is_skipping = False
        self._callback_error: BaseException | None = None

    def feed(self, data: bytes) -> None:
        """Parse data.

        Raises:
            HTTPError: The data is no valid HTTP, or more than it may be.
        """
        self._num_framing_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError:
            error, self._callback_error = self._callback_error, None
            if error is None:
                raise
            raise error from None
        except httptools.HttpParserError as error:
            raise bad_request(f"the request is not valid HTTP: {error}") from None
        self._pass_body()
        self._check_framing()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._body_head is not None:
                    self._replace_parser(self._body_head)

    def _replace_parser(self, head: bytes) -> None:
        """Read the body of a request by a parser that knows nothing of an upgrade."""
        self._body_head, self._is_skipping = None, True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)
        self._is_skipping = False

    def _pass_body(self) -> None:
        """Report what was parsed of a body, in one piece."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._num_framing_bytes -= len(data)
            self._num_body_bytes += len(data)
            self._sink.on_body(data)

    def _check_framing(self) -> None:
        if self.is_in_head and self._num_framing_bytes > MAX_HEAD_BYTES:
            raise head_too_large()
        if self._num_framing_bytes > MAX_HEAD_BYTES + MAX_FRAMING * self._num_body_bytes:
            raise bad_request("the chunks of the body have too much around them")

    # -- from the parser ---------------------------------------------------------------------------

    @_keeps_error
    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._is_skipping:
            self._target, self._headers = b"", []
            self._num_head_bytes = self._num_body_bytes = 0
            self.is_in_head = True
            self._sink.on_begin()

    def on_url(self, url: bytes) -> None:
        """Add a piece of the request target."""
        self._target += url
        self._num_head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; those behind a body are dropped."""
        if self.is_in_head:
            self._headers.append((name.lower(), value))
            self._num_head_bytes += len(name) + len(value) + 4

    @_keeps_error
    def on_headers_complete(self) -> None:
        """Report a head."""
        if self._is_skipping:
            return
        self.is_in_head = False
        self._num_framing_bytes = 0
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise head_too_large()
        parser = self._parser
        version = parser.get_http_version()
        keep_alive = version == "1.1" and parser.should_keep_alive()
        head = checked_head(parser.get_method(), self._target, self._headers, version)
        if parser.should_upgrade():
            self._body_head = _body_head(self._headers)
        self._sink.on_head(head, keep_alive=keep_alive)

    def on_body(self, data: bytes) -> None:
        """Keep a piece of a body: a chunk may be one byte, and costs no more than this call."""
        self._pieces.append(data)

    @_keeps_error
    def on_message_complete(self) -> None:
        """Report the end of a request."""
        self._pass_body()
        if self._body_head is None:
            self._num_framing_bytes = 0
            self._sink.on_end()


def _body_head(headers: Headers) -> bytes | None:
    """Return a head with the headers that say how long a body is; None if there is no body."""
    lines = [b"%b: %b\r\n" % pair for pair in headers if pair[0] in _BODY_HEADERS]
    return b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" if lines else None
