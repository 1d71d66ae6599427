"""Nothing is open but /livez, /readyz and the pages, however a request is spelt."""

import http.client
import itertools
import json
import logging
import secrets
import socket

import httpx
import openai
import pytest

KEY = "sk-canary-käy"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def locked(serve):
    return serve(api_key=(KEY,), max_body_bytes=2000)


def bearer(key=KEY, scheme="Bearer"):
    return {"authorization": f"{scheme} {key}".encode()}


def raw(served, request: bytes) -> tuple[int, bytes]:
    """Send bytes as they are; return the status and all that came back."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


def paths_of(served):
    routes = served.server.app.operations
    return sorted({route.path.replace("{model:path}", "demo") for route in routes})


ODD_PATHS = [
    "/",
    "/nowhere",
    "//livez",
    "/livez/",
    "/livez;",
    "/livez/..",
    "/livez/../v1/models",
    "/LIVEZ",
    "/readyz%20",
    "/readyz%00",
    "/livez%2f..%2fv1%2fmodels",
    "/v1/models/../../livez",
    "/./livez",
    "/v1/%6dodels",
    "/%2e/v1/models",
    "/v1/models?path=/livez",
    "/v1/models#/livez",
    "http://127.0.0.1/v1/models",
    "http://127.0.0.1:8000/livez/",
    "http://127.0.0.1?/livez",
    "*",
]


def _has_shape_of(path, error):
    """Return whether an error has the shape of the API that a path belongs to."""
    if path.startswith("/api/"):
        return isinstance(error, str)
    if path.startswith("/v1/messages"):
        return set(error) == {"message", "type", "details"}
    return set(error) == {"message", "type", "param", "code"}


def test_every_route_asks_for_the_key(locked):
    paths = paths_of(locked)
    assert {"/v1/chat/completions", "/tokenize", "/version", "/health", "/v1/plugins"} <= set(paths)
    methods = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
    with httpx.Client() as client:
        for path, method in itertools.product(paths, methods):
            response = client.request(method, locked.url + path)
            if path in ("/livez", "/readyz", "/ui", "/docs"):
                assert response.status_code in (200, 405)
                continue
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert _has_shape_of(path, response.json()["error"])


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]"])
def test_odd_spellings_ask_for_the_key(locked, path, method, host):
    request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
    status, _ = raw(locked, request.encode())
    assert status in (401, 400)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["livez", "v1/models"])
def test_the_host_of_an_absolute_target_counts(locked, method, path):
    request = (
        f"{method} http://evil/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    )
    status, body = raw(locked, request.encode())
    assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden_host")


def test_an_absolute_target_is_served_as_its_path(locked):
    request = "GET http://{}/livez HTTP/1.1\r\nHost: evil\r\n\r\n"
    for host in ("127.0.0.1", "localhost:80", "[::1]:8000"):
        assert raw(locked, request.format(host).encode())[0] == 200
    line = f"GET http://127.0.0.1/v1/models?a=/b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}"
    status, body = raw(locked, f"{line}\r\n\r\n".encode())
    assert status == 200
    assert b"demo" in body


@pytest.mark.parametrize(
    "host", ["a/?x=", "a/#", "evil.example", "127.0.0.1.evil.example", "x@127.0.0.1", "127.0.0.1:x"]
)
@pytest.mark.parametrize("path", ["/livez", "/v1/models"])
def test_a_foreign_host_is_refused_even_with_the_key(locked, host, path):
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer ".encode()
    status, body = raw(locked, request + KEY.encode() + b"\r\n\r\n")
    assert status in (400, 403)
    if status == 403:
        assert json.loads(body)["error"]["code"] == "forbidden_host"


def test_a_websocket_is_not_let_in(locked):
    upgrade = (
        b"GET /livez2 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw(locked, upgrade)[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        bearer("wrong"),
        bearer(KEY + "x"),
        bearer(KEY[:-1]),
        bearer(scheme="Basic"),
        {"authorization": KEY.encode()},
        {"x-api-key": KEY.encode() + b"x"},
        {"x-api-key": b"Bearer " + KEY.encode()},
        bearer("wrong") | {"x-api-key": KEY.encode()},
        bearer() | {"x-api-key": b"wrong"},
        [("x-api-key", KEY.encode()), ("x-api-key", KEY.encode())],
        [("authorization", f"Bearer {KEY}".encode()), ("authorization", b"Bearer x")],
    ],
)
def test_a_wrong_key_is_refused(locked, headers):
    response = httpx.get(f"{locked.url}/v1/models", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_the_right_key_opens(locked):
    for scheme in ("Bearer", "bearer"):
        response = httpx.get(f"{locked.url}/v1/models", headers=bearer(scheme=scheme))
        assert response.status_code == 200


def test_openais_client_raises_its_own_error_for_a_wrong_key(locked):
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_keys_are_compared_in_constant_time(locked, monkeypatch):
    calls = []
    real = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: calls.append(a) or real(a, b))
    httpx.get(f"{locked.url}/v1/models", headers=bearer("wrong"))
    httpx.get(f"{locked.url}/v1/models", headers=bearer())
    assert len(calls) == 2
    assert {len(call) for call in calls} == {32}


def test_the_key_is_in_no_log_line(locked, caplog):
    caplog.set_level(logging.DEBUG)
    httpx.get(f"{locked.url}/v1/models", headers=bearer())
    httpx.get(f"{locked.url}/v1/models", headers=bearer("sk-canary-guess"))
    assert "sk-canary" not in caplog.text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "x"])
def test_a_page_of_another_origin_cannot_post(served, origin):
    url = f"{served.url}/v1/chat/completions"
    response = httpx.post(url, json=CHAT, headers={"origin": origin})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "forbidden_origin"
    assert not served.core.requests


def test_a_page_of_our_own_origin_can_post_and_no_cors_header_is_sent(served):
    url = f"{served.url}/v1/chat/completions"
    response = httpx.post(url, json=CHAT, headers={"origin": served.url})
    assert response.status_code == 200
    preflight = httpx.options(url, headers={"origin": "http://evil.example"})
    for reply in (response, preflight):
        assert not [name for name in reply.headers if name.startswith("access-control-")]


def test_a_large_body_is_refused_by_its_length_and_by_counting(locked):
    url = f"{locked.url}/tokenize"
    body = json.dumps({"prompt": "x" * 3000})
    headers = bearer() | {"content-type": "application/json"}
    declared = httpx.post(url, content=body, headers=headers)
    counted = httpx.post(
        url, content=iter([body[:1500].encode(), body[1500:].encode()]), headers=headers
    )
    for response in (declared, counted):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
    small = httpx.post(url, json={"prompt": "x" * 100}, headers=bearer())
    assert small.status_code == 200


def test_ten_thousand_chunks_are_one_body(locked):
    body = json.dumps({"prompt": "x" * 1500}).encode()
    chunks = b"".join(b"1\r\n" + body[i : i + 1] + b"\r\n" for i in range(len(body)))
    head = (
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nAuthorization: Bearer "
    )
    request = head.encode() + KEY.encode() + b"\r\n\r\n" + chunks + b"0\r\n\r\n"
    status, reply = raw(locked, request)
    assert status == 200
    assert json.loads(reply)["count"] > 0


def test_an_empty_key_is_no_key():
    from quire.config import ServerSettings
    from quire.errors import SettingsError

    with pytest.raises(SettingsError, match="api_key is empty"):
        ServerSettings(api_key=("",))
