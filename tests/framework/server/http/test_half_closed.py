"""A client that has only ended its sending side gets its response; one that is gone is aborted."""

import json
import socket
import time

import pytest

from quire.server.http import client_probe


def request(version=b"1.1", further=b"", **fields):
    body = json.dumps({"prompt": "Hi", "max_tokens": 400} | fields).encode()
    head = b"POST /v1/completions HTTP/%b\r\nHost: 127.0.0.1\r\n%b" % (version, further)
    head += b"Content-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def connect(served):
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_all(connection):
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def final(received):
    """Return the response behind the interim ones."""
    while received.startswith(b"HTTP/1.1 100"):
        received = received.partition(b"\r\n\r\n")[2]
    return received


@pytest.mark.parametrize(
    ("version", "further"), [(b"1.1", b""), (b"1.1", b"Connection: close\r\n"), (b"1.0", b"")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_whole_response(
    served, monkeypatch, stream, version, further
):
    monkeypatch.setattr(client_probe, "PROBE_S", 0.05)
    served.core.step_s = 0.05
    served.texts.by_prompt = {"Hi": "a text of several tokens."}
    with connect(served) as connection:
        connection.sendall(request(version, further, stream=stream))
        connection.shutdown(socket.SHUT_WR)
        received = final(read_all(connection))
    assert received.startswith(b"HTTP/1.1 200")
    assert b"tokens" in received
    assert b'"finish_reason":"stop"' in received
    assert served.core.aborted == []


def test_several_requests_before_the_end_are_all_answered(served):
    served.core.step_s = 0.02
    with connect(served) as connection:
        connection.sendall(request(max_tokens=3) * 3)
        connection.shutdown(socket.SHUT_WR)
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("further", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("half_closed_s", [0.0, 0.3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_aborted(
    served, wait_for, monkeypatch, stream, half_closed_s, further
):
    monkeypatch.setattr(client_probe, "PROBE_S", 0.05)
    served.core.step_s = 0.02
    served.texts.by_prompt = {"Hi": "word " * 400}
    with connect(served) as connection:
        connection.sendall(request(further=further, stream=stream))
        assert wait_for(lambda: bool(served.core.running))
        if half_closed_s:
            connection.shutdown(socket.SHUT_WR)
            time.sleep(half_closed_s)
            assert served.core.running
    start = time.monotonic()
    assert wait_for(lambda: not served.core.running)
    assert time.monotonic() - start < 1.0  # two busy cores are no clock; it takes a step
    assert len(served.core.aborted) == 1
    assert wait_for(lambda: not served.server.connections.open)


@pytest.mark.parametrize("cut", [20, -5])
def test_a_request_that_will_never_be_complete_is_dropped(served, wait_for, cut):
    with connect(served) as connection:
        connection.sendall(request()[:cut])
        connection.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 200" not in read_all(connection)
    assert wait_for(lambda: not served.server.connections.open)
    assert served.core.requests == []


def test_an_idle_client_that_leaves_is_forgotten(served, wait_for):
    with connect(served) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    assert wait_for(lambda: not served.server.connections.open)
