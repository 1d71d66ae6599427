"""Errors and events under /v1/messages have the shape that Anthropic's clients read."""

import asyncio
import json

import pytest
from anthropic._error_classes import ERROR_CLASSES
from anthropic.types import ErrorResponse
from asgi_parts import JSON, Wire, call, get, post, scope_of

from quire import errors
from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.wire.anthropic_dialect import ANTHROPIC, PING, error_type_of
from quire.server.wire.dialect import ErrorDetail

PATH = "/v1/messages"
BODY = {"max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}


def shown(message, param=None, code="invalid_request", status=400):
    detail = ErrorDetail(message, "invalid_request_error", param, code)
    return json.loads(ANTHROPIC.error(detail, status, "req-1"))


def test_an_error_has_its_type_its_code_and_the_id_of_its_request():
    assert shown("no") == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "no",
            "details": {"error_code": "invalid_request"},
        },
        "request_id": "req-1",
    }
    ErrorResponse.model_validate_json(json.dumps(shown("no")), strict=True)
    assert shown("no", code=None)["error"]["details"] is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_the_type_follows_from_the_status(status, kind):
    assert error_type_of(status) == kind


@pytest.mark.parametrize(
    ("param", "message", "expected"),
    [
        ("stop", "stop has 40 items", "stop_sequences has 40 items"),
        ("stop", "stop[3] is empty: it would stop", "stop_sequences[3] is empty: it would stop"),
        ("stop_regex", "stop_regex is bad", "stop_regex is bad"),
        ("tools[1].function.name", "tools[1].function.name is bad", "tools[1].name is bad"),
        (
            "tools[1].function.parameters",
            "tools[1].function.parameters is bad",
            "tools[1].input_schema is bad",
        ),
        ("response_format", "response_format is bad", "output_config.format is bad"),
        (
            "response_format.json_schema.schema",
            "response_format.json_schema.schema is bad",
            "output_config.format.schema is bad",
        ),
        ("tools", "send tool_choice required", "send tool_choice any"),
        (None, "the file response_format", "the file response_format"),
    ],
)
def test_fields_are_named_as_the_client_has_sent_them(param, message, expected):
    assert shown(message, param)["error"]["message"] == expected


def test_an_event_has_its_name():
    frame = ANTHROPIC.stream.frame
    assert frame(b'{"type":"message_stop"}') == (
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert frame(b'{"type":"error","x":1}').startswith(b"event: error\n")
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(api_key=("sk-1",), max_body_bytes=1000), list)


@pytest.fixture
def open_app(frontend):
    return create_app(frontend, ServerSettings(max_body_bytes=1000), list)


def check(wire, status, kind):
    assert wire.status == status
    assert wire.error["type"] == kind
    found = wire.json()
    if status != 413:  # the client's schema has no type for it, but a class of its own
        ErrorResponse.model_validate(found, strict=True)
    assert found["request_id"] == wire.headers["request-id"] == wire.headers["x-request-id"]


def test_refusals_of_the_guard_and_of_the_router_have_the_shape(app, open_app):
    check(post(app, PATH, **BODY), 401, "authentication_error")
    check(post(app, f"{PATH}/count_tokens"), 401, "authentication_error")
    check(get(open_app, PATH), 405, "invalid_request_error")
    check(get(open_app, f"{PATH}/batches"), 404, "not_found_error")
    check(post(open_app, PATH, **BODY, system="x" * 2000), 413, "request_too_large")
    check(post(open_app, PATH, **BODY, model="ghost"), 404, "not_found_error")
    check(post(open_app, PATH, max_tokens=3), 400, "invalid_request_error")
    check(post(open_app, PATH, **BODY, temperature=-1), 400, "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/messagesx", "/v1/message", "/v1/chat/completions"])
def test_other_paths_keep_their_shape(open_app, path):
    wire = post(open_app, path, model=5)
    assert set(wire.json()) == {"error"}
    assert "request-id" not in wire.headers


def test_a_wrong_content_type_has_the_shape(open_app):
    scope = scope_of(PATH, headers=JSON | {"content-type": "text/plain"})
    check(asyncio.run(call(open_app, Wire(b"{}"), scope)), 415, "invalid_request_error")


def test_no_code_of_ours_means_something_else_to_the_client():
    codes = {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.QuireError)
    }
    codes |= {"invalid_api_key", "forbidden", "not_found", "rate_limited", "shutting_down"}
    assert not codes & {code for _, code in ERROR_CLASSES if code is not None}
