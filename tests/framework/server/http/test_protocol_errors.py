"""Data that is no valid HTTP gets a JSON error, where one can be sent, and ends the connection."""

import json
import socket
import time

import pytest

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "Hi", "max_tokens": 1}'
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def connect(served):
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def talk(served, *pieces):
    """Send pieces; return all that comes back until the server closes the connection."""
    with connect(served) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.02)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def error_of(received):
    """Return status and error of the last response."""
    head, _, body = received.rpartition(b"\r\n\r\n")
    lines = head.rpartition(b"HTTP/1.1 ")[2].lower()
    assert b"content-type: application/json" in lines
    assert b"connection: close" in lines
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return int(lines.split()[0]), error


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),  # TLS
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nno colon\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\nHost: 127.0.0.1\n\n", 400),
        (b"GET /li vez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n", 400),
        (b"GET ftp://127.0.0.1/livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET http://u@127.0.0.1/livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
        (b"GET /livez HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 70_000, 431),
        (b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: a\r\n" * 20_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 70_000, 431),
        (CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 33\r\nContent-Length: 5\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0x10\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED.replace(b"/1.1", b"/1.0") + b"\r\n0\r\n\r\n", 400),
        (CHUNKED + b"\r\nzz\r\nabc\r\n", 400),
        (CHUNKED + b"\r\n3\r\nabcdef\r\n0\r\n\r\n", 400),
        (CHUNKED + b"\r\n1\r\na\r\n0\r\nX: " + b"a" * 200_000, 400),
    ],
)
def test_a_fault_is_a_json_error_and_the_end(served, request_bytes, status):
    found, error = error_of(talk(served, request_bytes))
    assert found == status
    assert error["message"]
    assert served.core.requests == []


def test_a_wrong_chunk_later_fails_the_request_that_waits_for_it(served):
    found, error = error_of(talk(served, CHUNKED + b"\r\n3\r\nabc\r\n", b"what?\r\n"))
    assert (found, error["code"]) == (400, "bad_request")


def test_a_fault_behind_a_request_is_answered_after_it(served):
    served.core.step_s = 0.05
    received = talk(served, WHOLE + b"GARBAGE\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200")
    assert error_of(received)[0] == 400


def test_what_follows_a_last_request_is_dropped(served):
    last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    received = talk(served, last + WHOLE)
    assert received.count(b"HTTP/1.1") == 1
    assert len(served.core.requests) == 1


def test_requests_in_one_piece_are_answered_in_order(served):
    paths = [b"/livez", b"/nowhere", b"/version", b"/livez"]
    requests = [b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in paths]
    last = b"GET /livez HTTP/1.0\r\n\r\n"
    received = talk(served, b"".join(requests) + WHOLE + last)
    statuses = [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200", b"200", b"200", b"200"]


def test_too_many_requests_in_one_piece_are_an_error_after_those_that_may_wait(served):
    get = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    received = talk(served, get * 100)
    assert received.count(b"HTTP/1.1 200") == 33
    assert error_of(received)[0] == 400


@pytest.mark.parametrize("form", ["length", "chunks"])
def test_an_offer_to_upgrade_loses_no_body(served, form):
    offer = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    if form == "length":
        request = offer + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    else:
        chunks = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
        request = offer + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    cut = len(offer) + 3
    received = talk(served, request[:cut], request[cut:] + request, b"GET /livez HTTP/1.0\r\n\r\n")
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.count(b'"text_completion"') == 2


def test_a_body_that_waits_to_be_asked_for_is_asked_for(served):
    with connect(served) as connection:
        head = HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(BODY))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 200")


def test_a_client_of_http_1_0_gets_a_stream_without_chunks(served):
    body = BODY.replace(b"}", b', "stream": true}')
    head = HEAD.replace(b"/1.1", b"/1.0") + b"Content-Length: %d\r\n\r\n" % len(body)
    head, _, events = talk(served, head + body).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_head_request_has_no_body(served):
    received = talk(served, b"HEAD /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")
    assert b"content-length: 18" in received


def test_a_refusal_reaches_a_client_that_still_sends(served):
    """The rest of a body that is too large is not answered by a reset, which destroys the error."""
    with connect(served) as connection:
        connection.sendall(HEAD + b"Content-Length: 99999999\r\n\r\n" + b" " * 500_000)
        time.sleep(0.1)
        for _ in range(5):
            connection.sendall(b" " * 100_000)
            time.sleep(0.02)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert error_of(received)[1]["code"] == "body_too_large"


def test_faults_are_one_line_in_the_log(serve, caplog):
    served = serve()
    for _ in range(5):
        talk(served, b"GARBAGE\r\n\r\n")
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "no valid HTTP" in line]) == 1


def test_each_fault_is_in_the_metrics(serve):
    served = serve()
    for _ in range(3):
        talk(served, b"GARBAGE\r\n\r\n")
    metrics = talk(served, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b'quire_http_refused_connections_total{kind="protocol"} 3.0\n' in metrics
