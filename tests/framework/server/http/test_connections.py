"""A connection that does not come to the point is closed; one that does has all its time."""

import json
import socket
import time
from contextlib import ExitStack

import httpx
import pytest

from quire.server.http import connections, lifecycle, lifetime
from quire.server.http.connection_limit import ConnectionLimits

REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHAT = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    + f"Content-Length: {len(CHAT)}\r\n\r\n".encode()
)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(lifetime, "HEAD_TIMEOUT_S", 0.3)


def connect(served):
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def seconds_until_closed(connection):
    start = time.monotonic()
    while connection.recv(65536):
        pass
    return time.monotonic() - start


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", REQUEST[:-2]])
def test_a_head_that_does_not_end_closes_the_connection(served, hasty, sent):
    with connect(served) as connection:
        connection.sendall(sent)
        assert 0.1 < seconds_until_closed(connection) < 2


def test_a_head_that_comes_drop_by_drop_has_no_more_time(served, hasty):
    with connect(served) as connection:
        assert drip(connection, 100) < 30


def drip(connection, num_drops):
    """Send one byte after another; return how many were accepted."""
    for num_sent in range(num_drops):
        try:
            connection.sendall(b"G")
        except OSError:
            return num_sent
        time.sleep(0.05)
    return num_drops


def test_a_second_head_has_as_much_time_as_the_first(served, hasty):
    with connect(served) as connection:
        assert is_alive(connection)
        time.sleep(0.5)  # an idle connection is closed later
        connection.sendall(REQUEST[:20])
        assert 0.1 < seconds_until_closed(connection) < 2


def test_a_head_in_pieces_is_timed_once_and_its_response_not_at_all(served, monkeypatch):
    monkeypatch.setattr(lifetime, "HEAD_TIMEOUT_S", 0.8)
    served.core.step_s = 1.2
    served.core.tokens_per_step = 100
    with connect(served) as connection:
        for piece in (POST[:10], POST[10:20], POST[20:] + CHAT):
            connection.sendall(piece)
            time.sleep(0.005)
        response = b""
        while not response.endswith(b"}") and (part := connection.recv(65536)):
            response += part
    assert b"I am a script." in response


def test_a_request_that_has_started_may_take_its_time(served, hasty):
    served.core.step_s = 0.5
    served.core.tokens_per_step = 100
    with connect(served) as connection:
        connection.sendall(POST)
        time.sleep(0.5)
        connection.sendall(CHAT)
        response = b""
        while not response.endswith(b"}"):
            response += connection.recv(65536)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"I am a script." in response


def is_alive(connection):
    """Send a request, and read all of the response."""
    connection.sendall(REQUEST)
    response = b""
    while not response.endswith(b"}"):
        response += connection.recv(65536)
    return response.startswith(b"HTTP/1.1 200")


@pytest.fixture
def limits(monkeypatch, served, wait_for):
    """Return a function that sets the limits, once the connections of earlier tests are closed."""
    assert wait_for(lambda: not served.server.connections.open)

    def limit(served_with, most):
        found = ConnectionLimits(served_with, most)
        for module in (connections, lifecycle):
            monkeypatch.setattr(module, "connection_limits", lambda: found)

    yield limit
    monkeypatch.undo()
    assert httpx.get(f"{served.url}/livez").status_code == 200


def test_one_connection_too_many_is_closed_if_all_others_have_requests(served, limits, wait_for):
    limits(2, 2)
    with connect(served) as first, connect(served) as second:
        for connection in (first, second):
            connection.sendall(POST)
        assert wait_for(lambda: len(served.server.connections.tasks) == 2)
        with connect(served) as third:
            assert third.recv(65536) == b""
        for connection in (first, second):
            connection.sendall(CHAT)
            response = b""
            while not response.endswith(b"}"):
                response += connection.recv(65536)
            assert response.startswith(b"HTTP/1.1 200")


def test_idle_connections_give_way_to_a_health_check(served, limits, wait_for):
    limits(3, 3)
    seen = []
    with ExitStack() as probes, connect(served) as fresh:
        first, second = (probes.enter_context(connect(served)) for _ in range(2))
        assert is_alive(first)
        assert is_alive(second)
        for idle in (first, second, fresh):
            probe = probes.enter_context(connect(served))
            assert is_alive(probe)
            assert idle.recv(65536) == b""
            probe.sendall(REQUEST[:20])  # it keeps its place
            assert wait_for(lambda: num_in_head(served) == 1 + len(seen))
            seen.append(idle)


def num_in_head(served):
    return sum(each._parser.is_in_head for each in list(served.server.connections.open))


def test_a_head_that_has_begun_keeps_its_connection(served, limits, wait_for):
    limits(1, 1)
    with connect(served) as first:
        first.sendall(REQUEST[:20])
        assert wait_for(lambda: num_in_head(served) == 1)
        with connect(served) as second:
            assert second.recv(65536) == b""
        first.sendall(REQUEST[20:])
        assert first.recv(65536).startswith(b"HTTP/1.1 200")


def test_with_many_connections_requests_are_refused_and_health_checks_answered(served, limits):
    limits(1, 3)
    with connect(served) as first:
        assert is_alive(first)
        response = httpx.post(f"{served.url}/v1/chat/completions", content=CHAT)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "overloaded"
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["connection"] == "close"
        assert httpx.get(f"{served.url}/livez").status_code == 200
        assert httpx.get(f"{served.url}/readyz").status_code == 200
        assert is_alive(first)
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{served.url}/v1/chat/completions", content=CHAT, headers=headers)
    assert response.status_code == 200


def test_the_clock_of_a_connection_ends_with_it(served, wait_for):
    known = served.server.connections.open
    assert wait_for(lambda: not known)
    with connect(served):
        assert wait_for(lambda: len(known) == 1)
        (connection,) = known
        clock = connection._lifetime._deadline._timer
        assert not clock.cancelled()
    assert wait_for(lambda: not known)
    assert clock.cancelled()
