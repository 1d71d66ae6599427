"""The requests of a connection are the same wherever its data is cut."""

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.http.request_head import MAX_HEAD_BYTES
from quire.server.http.request_parser import RequestParser
from quire.server.wire.http_errors import HTTPError

HOST = b"Host: 127.0.0.1\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@dataclass
class Requests:
    """What a parser reported: a (method, target, body, keeps alive) for each complete request."""

    complete: list[tuple[str, bytes, bytes, bool]] = field(default_factory=list)
    num_begun: int = 0

    def on_begin(self):
        self.num_begun += 1

    def on_head(self, head, *, keep_alive):
        self._head, self._body = (head.method, head.target), b""
        self._keep_alive = keep_alive

    def on_body(self, data):
        self._body += data

    def on_end(self):
        self.complete.append((*self._head, self._body, self._keep_alive))


def parsed(*pieces):
    requests = Requests()
    parser = RequestParser(requests)
    for piece in pieces:
        parser.feed(piece)
    return requests, parser


def chunked(body, size):
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\nX-Trailer: a\r\n\r\n"


@st.composite
def messages(draw):
    """A request's bytes, and what they mean."""
    body = draw(st.binary(max_size=40))
    target = draw(st.sampled_from([b"/", b"/v1/models?a=b", b"/a%20b", b"*"]))
    head = draw(st.sampled_from([b"", UPGRADE, b"X-Long: " + b"x" * 50 + b"\r\n"]))
    form = draw(st.sampled_from(["none", "length", "chunks"]))
    start = b"POST %b HTTP/1.1\r\n%b%b" % (target, HOST, head)
    if form == "none":
        return start + b"\r\n", ("POST", target, b"", True)
    if form == "length":
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        return start + length + body, ("POST", target, body, True)
    coded = chunked(body, draw(st.integers(1, 9)))
    return start + b"Transfer-Encoding: chunked\r\n\r\n" + coded, ("POST", target, body, True)


@given(st.lists(messages(), min_size=1, max_size=4), st.lists(st.integers(0, 1000), max_size=8))
def test_requests_are_the_same_wherever_they_are_cut(given_messages, cuts):
    data = b"".join(each for each, _ in given_messages)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[i:j] for i, j in pairwise(places)]
    requests, parser = parsed(*pieces)
    assert requests.complete == [meaning for _, meaning in given_messages]
    assert requests.num_begun == len(given_messages)
    assert not parser.is_in_head


@given(st.lists(messages(), min_size=1, max_size=3), st.integers(0, 2000))
def test_a_part_of_the_data_is_a_part_of_the_requests(given_messages, end):
    data = b"".join(each for each, _ in given_messages)[:end]
    complete = parsed(*[data[i : i + 1] for i in range(len(data))])[0].complete
    assert complete == [meaning for _, meaning in given_messages][: len(complete)]


@given(st.binary(max_size=300))
def test_any_data_is_requests_or_a_typed_error(data):
    with suppress(HTTPError):  # and no other error
        parsed(b"GET / HTTP/1.1\r\n" + HOST + data)


@pytest.mark.parametrize("piece", [b"a", b"a" * 4000])
def test_a_head_without_an_end_is_refused_at_its_limit(piece):
    requests = Requests()
    parser = RequestParser(requests)
    parser.feed(b"GET / HTTP/1.1\r\nX: ")
    for _ in range((MAX_HEAD_BYTES - 50) // len(piece)):
        parser.feed(piece)
    with pytest.raises(HTTPError, match="head is larger") as raised:
        parser.feed(piece * (1 + 50 // len(piece)))
    assert raised.value.status == 431


def test_small_chunks_are_accepted_and_endless_frames_are_not():
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    requests, _ = parsed(head, chunked(b"a" * 50_000, 1))
    assert requests.complete[0][2] == b"a" * 50_000
    with pytest.raises(HTTPError, match="too much around"):
        parsed(head, *[b"1;" + b"x" * 5000 + b"\r\na\r\n"] * 100)


def test_the_chunks_of_one_read_are_one_piece():
    pieces = []

    class Counting(Requests):
        def on_body(self, data):
            pieces.append(data)

    parser = RequestParser(Counting())
    parser.feed(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(2):
        parser.feed(b"1\r\na\r\n" * 1000)
    assert pieces == [b"a" * 1000] * 2


def test_an_error_of_the_sink_that_is_no_refusal_is_not_hidden():
    class Broken(Requests):
        def on_head(self, head, *, keep_alive):
            raise KeyError("a defect")

    with pytest.raises(KeyError, match="a defect"):
        RequestParser(Broken()).feed(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")


def test_a_refusal_is_a_refusal_while_another_error_is_handled():
    class Refusing(Requests):
        def on_head(self, head, *, keep_alive):
            raise HTTPError(400, "refused", code="bad_request")

    try:
        raise OSError("another error")
    except OSError:
        with pytest.raises(HTTPError, match="refused"):
            RequestParser(Refusing()).feed(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
