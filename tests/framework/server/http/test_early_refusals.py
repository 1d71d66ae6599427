"""While requests wait, some are refused as the application would do it, and without it."""

import asyncio
import json
import socket
from functools import partial

import httpx
import pytest
from engine_parts import make_message
from long_queue import long_queue
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend, start_server, stop_servers

from quire.config import ServerSettings
from quire.frontend.dispatch.backlog import QueueLimits
from quire.server.app import create_app
from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connections import Connections
from quire.server.http.lifecycle import Lifecycle
from quire.server.http.refusals import Refusals
from quire.server.observe.monitor import Monitor

FULL = QueueLimits(max_running=0, max_queued=0)
KEY = "sk-sesame"
BODY = json.dumps({"prompt": "x", "max_tokens": 1, "timeout_s": 5.0}).encode()
PATH = "/v1/completions"


LENGTH = len(BODY)


def head(length=LENGTH, path=PATH, method="POST", **headers):
    given = {"host": "127.0.0.1", "content-type": "application/json", "content-length": length}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}\r\n" for name, value in given.items() if value is not None]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


@pytest.fixture
def frontend_of(tokenizer):
    """Return a function that makes frontends; they are stopped at the end."""
    made = []

    def make(limits=FULL):
        made.append(make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), queue_limits=limits))
        return made[-1]

    yield make
    for frontend in made:
        asyncio.run(frontend.shutdown())


async def unreachable(scope, receive, send):
    raise AssertionError(f"the application is called for {scope['path']}")


@pytest.fixture
def converse(frontend_of, tmp_path):
    """Send pieces to a server with a full queue whose application is not to be called.

    Returns what was received until the server closes, or until `num` responses are there; then
    the connection is still open.
    """

    def run(*pieces, num=None, backlog=None, **settings):
        options = ServerSettings(access_log=str(tmp_path / "log"), **settings)

        async def main():
            frontend, lifecycle = frontend_of(), Lifecycle()
            frontend.dispatch.backlog = backlog or frontend.dispatch.backlog
            monitor = Monitor(frontend, options, lifecycle)
            app = create_app(frontend, options, list, lifecycle, monitor=monitor)
            listener, refusals = socket.socket(), Refusals()
            listener.bind(("127.0.0.1", 0))
            connections = Connections(unreachable, refusals, app.early_refusals)
            acceptor = Acceptor(listener, partial(Connection, connections), refusals)
            acceptor.start()
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            received = b""
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
            while num is None or received.count(b'"code"') < num:
                if not (data := await reader.read(65536)):
                    break
                received += data
            is_open = not reader.at_eof()
            acceptor.stop()
            await connections.close(1.0)
            writer.close()
            monitor.close()
            return received.decode(), is_open

        return asyncio.run(asyncio.wait_for(main(), 30))

    return run


def test_a_request_gets_the_whole_refusal(converse):
    received, is_open = converse(head(x_request_id="mine") + BODY, num=1)
    assert received.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    start, _, body = received.partition("\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in start.split("\r\n")[1:])
    assert headers["retry-after"] == "1"
    assert headers["x-request-id"] == "mine"
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(body)
    assert "date" in headers
    assert "connection" not in headers
    error = json.loads(body)["error"]
    assert (error["code"], error["type"], error["param"]) == ("overloaded", "server_error", None)
    assert is_open


def test_a_response_is_refused_as_a_completion_is(converse):
    body = json.dumps({"input": "x"}).encode()
    received, is_open = converse(head(len(body), "/v1/responses") + body, num=1)
    assert received.startswith("HTTP/1.1 503 ")
    assert json.loads(received.partition("\r\n\r\n")[2])["error"]["code"] == "overloaded"
    assert is_open


def test_a_connection_is_used_again(converse):
    request = head() + BODY
    received, is_open = converse(request, request, request + request, num=4)
    assert received.count("HTTP/1.1 503") == 4
    assert is_open


def test_a_short_body_may_come_after_the_refusal(converse):
    received, is_open = converse(head(), BODY[:5], BODY[5:], head() + BODY, num=2)
    assert received.count("HTTP/1.1 503") == 2
    assert is_open


def test_a_client_that_wants_to_close_is_closed(converse):
    received, is_open = converse(head(connection="close") + BODY)
    assert received.count("HTTP/1.1 503") == 1
    assert "connection: close" in received
    assert not is_open


@pytest.mark.parametrize(
    "headers",
    [
        {"length": 10**6},
        {"expect": "100-continue"},
        {"length": None, "transfer_encoding": "chunked"},
    ],
)
def test_a_body_that_has_not_come_is_not_waited_for(converse, headers):
    received, is_open = converse(head(**headers))
    assert received.startswith("HTTP/1.1 503"), "and no 100"
    assert "connection: close" in received
    assert not is_open


def test_a_client_that_sends_a_long_body_is_not_reset(converse):
    received, is_open = converse(head(10**6), b"x" * 300_000, b"x" * 300_000)
    assert received.count("HTTP/1.1 503") == 1
    assert not is_open


def test_requests_behind_a_refused_one_that_closes_are_dropped(converse):
    request = head(connection="close") + BODY
    received, _ = converse(request + request)
    assert received.count("HTTP/1.1 503") == 1


def test_a_wrong_key_learns_nothing_of_the_queue(converse):
    received, _ = converse(head(authorization="Bearer wrong") + BODY, num=1, api_key=(KEY,))
    assert received.startswith("HTTP/1.1 401")
    assert "www-authenticate: Bearer" in received
    assert "retry-after" not in received
    received, _ = converse(head(authorization=f"Bearer {KEY}") + BODY, num=1, api_key=(KEY,))
    assert received.startswith("HTTP/1.1 503")


def test_a_request_that_would_not_end_in_its_time_is_refused_with_its_body(converse):
    backlog = long_queue()
    received, is_open = converse(head() + BODY, head() + BODY, num=2, backlog=backlog)
    assert received.count("HTTP/1.1 503") == 2
    assert "this request has 5 s left" in received
    wait_ms = int(received.partition("retry-after-ms: ")[2].partition("\r")[0])
    assert wait_ms == pytest.approx(1000 * min(60, backlog.wait_s), rel=0.01)
    assert is_open


def test_a_refusal_has_a_line_in_the_access_log(converse, tmp_path):
    converse(head(x_request_id="mine") + BODY, num=1)
    (line,) = (tmp_path / "log").read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("duration_s") >= 0
    assert entry.pop("time")
    assert entry == {
        "request_id": "mine",
        "client": "127.0.0.1",
        "method": "POST",
        "path": PATH,
        "status": 503,
        "error_code": "overloaded",
    }


@pytest.fixture
def full(frontend_of):
    """A server with a full queue, and with keys for requests and for control."""
    frontend = frontend_of()
    keys = {"api_key": (KEY,), "admin_key": ("sk-admin",)}
    served = start_server(frontend.thread, frontend, **keys)
    yield served
    stop_servers([served])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/livez", None),
        ("GET", "/readyz", None),
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/version", None),
        ("GET", "/v1/models", None),
        ("GET", "/admin/usage", None),
        ("POST", "/reset_prefix_cache", None),
        ("POST", "/tokenize", {"prompt": "Hi"}),
    ],
)
def test_what_needs_no_place_in_the_queue_is_served(full, method, path, body):
    key = "sk-admin" if "reset" in path or "admin" in path else KEY
    headers = {"authorization": f"Bearer {key}"}
    response = httpx.request(method, full.url + path, json=body, headers=headers)
    assert response.status_code == 200


def test_refusals_are_counted_in_the_metrics(full):
    headers = {"authorization": f"Bearer {KEY}"}
    for _ in range(3):
        assert httpx.post(full.url + PATH, content=BODY, headers=headers).status_code == 503
    assert httpx.post(full.url + PATH, content=BODY).status_code == 401
    text = httpx.get(f"{full.url}/metrics", headers=headers).text
    assert f'route="{PATH}",status="503"}} 3' in text
    assert 'route="/v1/completions",status="401"} 1' in text
    assert 'code="overloaded"} 3' in text
    assert 'code="invalid_api_key"} 1' in text


KEYED = {"authorization": f"Bearer {KEY}"}
TYPED = KEYED | {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (TYPED, BODY),
        (TYPED, b'{"prompt": "x", "timeout_s": 1e-9}'),
        (TYPED, b'{"prompt": "x", "timeout_s": -1}'),
        (TYPED, b'{"prompt": 7'),
        (TYPED, b'{"prompt": "x", "temprature": 1}'),
        (TYPED, b'{"prompt": "x", "priority": -1}'),
        (KEYED | {"content-type": "text/plain"}, BODY),
        (TYPED | {"host": "example.com"}, BODY),
        (TYPED | {"origin": "http://example.com"}, BODY),
        (TYPED | {"authorization": "Bearer sk-admin"}, BODY),
        ({"content-type": "application/json"}, BODY),
    ],
)
@pytest.mark.parametrize("limits", [FULL, QueueLimits(0, 10, max_wait_s=1.0)])
def test_the_answer_is_that_of_the_application(frontend_of, limits, headers, body):
    keys = {"api_key": (KEY,), "admin_key": ("sk-admin",)}
    found = []
    for is_early in (True, False):
        frontend = frontend_of(limits)
        backlog = frontend.dispatch.backlog
        if limits is not FULL:
            backlog.add(frontend_requests(4))
            assert backlog.may_refuse
        served = start_server(frontend.thread, frontend, **keys)
        if not is_early:
            served.server.connections.early_refusals = None
        response = httpx.post(served.url + PATH, headers=headers, content=body, timeout=10)
        stop_servers([served])
        error = response.json().get("error", {})
        kept = {name: v for name, v in response.headers.items() if "retry" in name or "www" in name}
        found.append((response.status_code, error.get("code"), error.get("param"), kept))
    assert found[0] == found[1]


def test_a_refusal_has_the_shape_of_its_family(converse):
    body = b'{"messages": [], "max_tokens": 1}'
    received, _ = converse(head(len(body), path="/v1/messages", connection="close") + body)
    header, _, content = received.partition("\r\n\r\n")
    error = json.loads(content)
    assert header.startswith("HTTP/1.1 503 ")
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
    assert f"\r\nrequest-id: {error['request_id']}\r\n" in header


def frontend_requests(num):
    """Return requests that wait for an engine which never begins them."""
    return [make_message(f"q{i}", prompt=[1] * 10, max_tokens=50) for i in range(num)]
