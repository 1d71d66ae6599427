"""Details of an error go to the client or to the log, and none is lost."""

import asyncio
import logging

import pytest
from asgi_parts import JSON, Wire, call, get, scope_of

from quire.config import ServerSettings
from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ReplicaDeadError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.server.app import create_app
from quire.server.wire.http_errors import (
    HTTPError,
    detail_of,
    error_json,
    error_response,
    status_of,
)


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (OverloadedError("full"), {"retry-after": "1"}),
        (
            OverloadedError("full", retry_after_s=6.25),
            {"retry-after": "7", "retry-after-ms": "6250"},
        ),
        (ReplicaDeadError("killed"), {"retry-after": "1"}),
        (EngineDeadError("gone"), {"x-should-retry": "false"}),
        (RequestTimeoutError("late"), {"x-should-retry": "false"}),
        (HTTPError(503, "later", code="x", headers={"a": "b"}), {"a": "b"}),
        (HTTPError(503, "later", code="x"), {}),
        (RequestFailedError("it broke"), {}),
        (ValueError("it broke"), {}),
    ],
)
def test_headers_say_whether_to_send_it_again(error, headers):
    names = {"content-type", "content-length"}
    found = error_response(error).headers
    assert {name: value for name, value in found.items() if name not in names} == headers
    assert found["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HTTPError(418, "tea", code="x"), 418),
        (UnknownModelError("x"), 404),
        (OverloadedError("x"), 503),
        (ReplicaDeadError("x"), 503),
        (EngineDeadError("x"), 503),
        (RequestTimeoutError("x"), 504),
        (RequestFailedError("x"), 500),
        (InvalidRequestError("x"), 400),
        (KeyError("x"), 500),
    ],
)
def test_each_error_has_its_status(error, status):
    assert status_of(error) == error_response(error).status_code == status


@pytest.mark.parametrize("kind", [InvalidRequestError, RequestFailedError])
@pytest.mark.parametrize(("length", "shown"), [(2000, 2000), (2001, 2003), (10**6, 2003)])
def test_a_message_is_cut_behind_so_many_characters(kind, length, shown):
    message = detail_of(kind("x" * length)).message
    assert len(message) == shown
    assert message.endswith("...") == (shown != length)


@pytest.mark.parametrize("kind", [InvalidRequestError, RequestFailedError])
def test_a_lone_surrogate_becomes_a_mark(kind):
    assert error_json(kind("odd \ud800 text"), {"path": "/"}).startswith(
        b'{"error":{"message":"odd ? text"'
    )
    wrapped = HTTPError(400, "odd \ud800 text", code="x")
    assert b"odd ? text" in error_json(wrapped, {"path": "/"})


def test_every_error_of_a_request_has_the_field_and_the_code():
    for error in (
        InvalidRequestError("x", param="n"),
        RequestFailedError("x", param="n"),
        HTTPError(413, "x", code="too_big", param="n"),
    ):
        assert detail_of(error).param == "n"
    assert detail_of(HTTPError(413, "x", code="too_big")).code == "too_big"


def test_a_bug_is_reported_with_the_requests_id_alone(caplog):
    error = ValueError("a secret at /opt/x/y")
    assert detail_of(error, "req-7").message == "internal error (request req-7); see the log"
    assert detail_of(error).message == "internal error; see the log"
    assert detail_of(EngineDeadError("a secret")).message.startswith("the engine stopped")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("a secret"), "ValueError: a secret"),
        (RequestFailedError("it broke\nin two lines"), r"'it broke\nin two lines'"),
        (EngineDeadError("it is gone"), "it is gone"),
        (InvalidRequestError("wrong"), None),
        (OverloadedError("full"), None),
        (ReplicaDeadError("killed"), "killed"),
        (RequestTimeoutError("late"), None),
    ],
)
def test_the_log_has_failures_of_the_server_and_nothing_else(caplog, error, expected):
    with caplog.at_level(logging.DEBUG):
        error_response(error, "req-7")
    if expected is None:
        assert caplog.text == ""
    else:
        assert "request req-7 failed" in caplog.text
        assert expected in caplog.text


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), lambda: [{"name": "scripted"}])


def test_a_wrong_method_says_which_ones_there_are(app):
    wire = get(app, "/tokenize")
    assert (wire.status, wire.error["code"]) == (405, "method_not_allowed")
    assert wire.headers["allow"] == "POST"
    assert wire.error["message"].startswith("GET /tokenize: ")


@pytest.mark.parametrize("path", ["/nowhere", "/livez/", "/v1/models/", "/v1//models"])
def test_a_wrong_path_is_not_found(app, path):
    wire = get(app, path)
    assert (wire.status, wire.error["code"]) == (
        404,
        "model_not_found" if path == "/v1/models/" else "not_found",
    )
    assert wire.headers["x-request-id"].startswith("req-")


def test_a_client_that_leaves_while_its_body_comes_is_not_an_error(app, caplog):
    pieces = [{"type": "http.request", "body": b"{", "more_body": True}]

    class Leaving(Wire):
        async def receive(self):
            return pieces.pop() if pieces else {"type": "http.disconnect"}

    wire = asyncio.run(call(app, Leaving(), scope_of("/tokenize", headers=JSON)))
    assert wire.status == 499
    assert caplog.text == ""
