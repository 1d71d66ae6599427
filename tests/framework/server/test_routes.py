"""Every route asks for a key, however it is spelt, and no error shows the inside of the server."""

import asyncio
import itertools
import json
import logging
import re
from urllib.parse import quote, unquote

import pytest
from asgi_parts import JSON, Wire, call, scope_of

from quire.config import ServerSettings
from quire.process.log_lines import one_record
from quire.server.app import create_app

KEY, ADMIN = "sk-canary", "sk-canary-root"
HOSTS = ["quire.example", "a/?x=", "a/#", "a\\b", "livez", "127.0.0.1/livez", "[::1", ""]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "ODD"]
SHAPES = ({"message", "type", "param", "code"}, {"message", "type", "details"}, {"error"})
CODES_OF_STRANGERS = {"invalid_api_key", "authentication_error"}
OPEN = ("/livez", "/readyz", "/ui", "/docs")
ENDLESS = "/v1/engine/stream"  # a stream that only its client ends


@pytest.fixture(scope="module")
def app(module_frontend):
    settings = ServerSettings(host="0.0.0.0", api_key=(KEY,), admin_key=(ADMIN,))
    return create_app(module_frontend, settings, lambda: [{"name": "scripted"}])


def error_of(wire):
    """Return the fields of an error; in Ollama's API it is a text."""
    error = wire.json()["error"]
    return {"error": error} if isinstance(error, str) else error


def operations_of(app):
    return [(route.path.replace("{model:path}", "demo"), route) for route in app.operations]


def ending_operations_of(app):
    return [(path, route) for path, route in operations_of(app) if path != ENDLESS]


def spellings(path):
    """Return ways to write a path, some of which other servers take for it, or for an open one."""
    rest = path.removeprefix("/")
    return [
        path,
        path.upper(),
        path.title(),
        f"/{path}",
        f"/{path}//",
        f"{path}/",
        f"{path};",
        f"{path};/livez",
        f"{path}?/livez",
        f"{path}#/livez",
        f"{path}%00",
        f"{path}%20",
        f"{path}%2f..%2flivez",
        f"/livez/..{path}",
        f"/livez/../{rest}",
        f"/livez%2f..%2f{rest}",
        f"/livez;{path}",
        f"/livez/.{path}",
        f"/readyz//..{path}",
        f"/%2e{path}",
        "/" + quote(rest, safe="").replace("%2F", "%2f"),
        "".join(f"%{byte:02x}" for byte in path.encode()),
        f"http://evil.example{path}",
        f"//evil.example{path}",
    ]


def ask(app, raw, method="GET", host="quire.example", body=b"", key=None, **fields):
    path, _, query = raw.partition("?")
    headers = JSON | {"host": host} | ({"authorization": f"Bearer {key}"} if key else {})
    given = {"query_string": query.encode(), "raw_path": path.encode()} | fields
    scope = scope_of(unquote(path), method, headers, **given)
    return asyncio.run(call(app, Wire(body), scope))


def test_there_are_all_kinds_of_routes(app):
    paths = {path for path, _ in operations_of(app)}
    assert {"/v1/chat/completions", "/tokenize", "/health", "/v1/plugins"} <= paths
    assert {"/reset_prefix_cache", "/admin/keys", "/admin/usage", "/openapi.json"} <= paths


def test_no_spelling_of_any_route_answers_without_a_key(app):
    for path, _ in operations_of(app):
        for spelt, method in itertools.product(spellings(path), METHODS):
            wire = ask(app, spelt, method)
            if spelt.partition("?")[0] in OPEN:
                assert wire.status in (200, 405)
                continue
            assert wire.status == 401, (method, spelt)
            words = {each for each in error_of(wire).values() if isinstance(each, str)}
            is_text = any("requires a key" in each for each in words)
            assert CODES_OF_STRANGERS & words or is_text
            assert wire.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("root_path", ["", "/livez", "/v1"])
def test_neither_the_host_nor_a_prefix_opens_a_route(app, host, root_path):
    for path, _ in operations_of(app):
        for method in ("GET", "POST", "OPTIONS"):
            wire = ask(app, path, method, host, root_path=root_path)
            assert wire.status == 401 or path in OPEN, (method, path)


def test_only_the_admin_key_opens_control_routes_however_they_are_spelt(app):
    for path in ("/reset_prefix_cache", "/admin/keys", "/admin/usage"):
        for spelt, method in itertools.product(spellings(path), ("GET", "POST")):
            assert ask(app, spelt, method, key=KEY).status in (403, 404, 405), spelt


@pytest.mark.parametrize("path", ["/livez", "/v1/chat/completions", "/admin/keys"])
def test_a_websocket_is_closed(app, path):
    wire = Wire()
    scope = scope_of(path) | {"type": "websocket", "subprotocols": []}
    asyncio.run(app(scope, wire.receive, wire.send))
    assert wire.sent == [{"type": "websocket.close", "code": 1008}]


HOSTILE = "x\r\n2026-01-01 00:00:00 INFO quire: forged \x1b[31m\u202e"
WRONG = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b'{"model": "\xff"}',
    "NaN": b'{"temperature": NaN}',
    "too deep": b'{"a":' * 99 + b"1" + b"}" * 99,
    "ten thousand deep": b'{"prompt":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "equal names": b'{"prompt": 1, "prompt": {}, "messages": [], "messages": 1, "tokens": 1}',
    "a foreign model": json.dumps({"model": HOSTILE, "prompt": "x", "tokens": [1]}).encode(),
    "wrong types": json.dumps(
        {"model": 1, "messages": {}, "prompt": {"a": HOSTILE}, "tokens": HOSTILE, "n": HOSTILE}
    ).encode(),
    "unknown fields": json.dumps({HOSTILE: HOSTILE, "prompt": HOSTILE, "/etc/passwd": 1}).encode(),
    "wrong values": json.dumps(
        {
            "messages": [{"role": HOSTILE, "content": HOSTILE}],
            "prompt": HOSTILE,
            "tokens": [10**9],
            "max_tokens": -1,
            "cache_salt": HOSTILE,
            "stop": [HOSTILE] * 99,
        }
    ).encode(),
    "a lone surrogate": rb'{"model": "\ud800", "prompt": "\ud800", "messages": [], "tokens": []}',
    "a bad regex": json.dumps(
        {
            "prompt": "x",
            "messages": [{"role": "user", "content": "x"}],
            "stop_regex": "(" + HOSTILE,
            "structured_outputs": {"regex": "(" + HOSTILE},
        }
    ).encode(),
}
INSIDE = re.compile(r"Traceback|File \"|0x[0-9a-f]{6}|\.py\b|site-packages|/usr/|/home")


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
def test_no_error_of_any_route_shows_the_inside_of_the_server(app, caplog, method, body):
    caplog.set_level(logging.DEBUG)
    for path, route in ending_operations_of(app):
        for key in (KEY, ADMIN):
            wire = ask(app, path, method, body=body, key=key)
            if wire.status == 200:
                assert method == route.method
                continue
            assert wire.status < 500, (path, wire.body)
            assert set(error_of(wire)) in SHAPES
            assert not INSIDE.search(wire.body.decode()), wire.body
            assert "sk-canary" not in wire.body.decode()
            assert "\n" not in wire.body.decode()
    assert "sk-canary" not in caplog.text
    assert "forged" not in caplog.text  # a wrong request is no event of the server


HEADERS = ["x-request-id", "user-agent", "origin", "content-type", "authorization", "traceparent"]


@pytest.mark.parametrize("name", HEADERS)
def test_no_header_forges_a_line_of_the_log(app, caplog, name):
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"prompt": "x", "model": "demo", "max_tokens": 1}).encode()
    for path, _ in ending_operations_of(app):
        for method in ("GET", "POST"):
            given = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
            scope = scope_of(path, method, given)
            forged = HOSTILE.encode().replace(b"\r\n", b"\x0b\x85")  # no parser lets CR LF through
            scope["headers"] = [h for h in scope["headers"] if h[0] != name.encode()]
            scope["headers"].append((name.encode(), forged))
            wire = asyncio.run(call(app, Wire(body), scope))
            shown = [value for value in wire.sent[0]["headers"] if b"forged" in value[1]]
            assert not shown
    for record in caplog.records:
        assert "forged" not in record.getMessage() or "\x1b" not in one_record(record.getMessage())
