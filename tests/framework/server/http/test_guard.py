"""The guard, in front of small applications and without a server."""

import asyncio
import time

import pytest
from asgi_parts import Wire, call, get, scope_of
from starlette.responses import Response

from quire.config import ServerSettings
from quire.server.http.guard import Guard
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import digest_of

KEY = "sesame"
KEY_NAME = f"key-{digest_of(KEY.encode()).hex()[:8]}"
OWN_ORIGIN = "http://127.0.0.1:8000"


async def count(scope, receive, send):
    """Answer with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await Response(str(size))(scope, receive, send)


async def fail(scope, receive, send):
    raise ValueError("a bug")


async def fail_late(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError("a bug")


def guard(app=count, lifecycle=None, **settings):
    options = ServerSettings(**settings)
    return Guard(app, options, lifecycle or Lifecycle(), Accounts.load(options))


def ask(guarded, *pieces, path="/v1/x", method="POST", headers=None, **fields):
    wire = Wire(*pieces)
    return asyncio.run(call(guarded, wire, scope_of(path, method, headers, **fields)))


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"x" * 10], 200),
        ([b"x" * 11], 413),
        ([b"x" * 6, b"x" * 4], 200),
        ([b"x" * 6, b"x" * 5], 413),
        ([b"x"] * 10, 200),
        ([b"x"] * 11, 413),
    ],
)
def test_the_pieces_of_a_body_are_counted_together(pieces, status):
    wire = ask(guard(max_body_bytes=10), *pieces)
    assert wire.status == status
    if status == 200:
        assert wire.body == b"10"
    else:
        assert wire.error["code"] == "body_too_large"
        assert wire.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("length", "status"), [("10", 200), ("11", 413), ("9" * 40, 413), ("0", 200), ("-11", 200)]
)
def test_a_length_that_is_too_large_is_refused_before_the_body_is_read(length, status):
    wire = Wire(b"")
    guarded = guard(max_body_bytes=10)
    asyncio.run(call(guarded, wire, scope_of("/v1/x", headers={"content-length": length})))
    assert wire.status == status
    assert bool(wire._pieces) is (status == 413)
    if status == 413:
        assert wire.error["code"] == "body_too_large"
        assert wire.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (OWN_ORIGIN, 200),
        (OWN_ORIGIN.upper(), 200),
        ("https://127.0.0.1:8000", 200),
        ("ftp://127.0.0.1:8000", 403),
        ("http://127.0.0.1:8001", 403),
        ("http://evil.example", 403),
        ("127.0.0.1:8000", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_pages_of_our_own_origin_may_post(origin, status):
    wire = ask(guard(), headers={"origin": origin})
    assert wire.status == status
    if status == 403:
        assert wire.error["code"] == "forbidden_origin"


def test_an_origin_without_a_host_is_foreign():
    headers = [(b"origin", OWN_ORIGIN.encode())]
    assert ask(guard(), headers=None).status == 200
    assert asyncio.run(call(guard(), Wire(), scope_of("/x") | {"headers": headers})).status == 403
    both = [*headers, (b"host", b"127.0.0.1:8000"), (b"origin", b"http://evil.example")]
    assert asyncio.run(call(guard(), Wire(), scope_of("/x") | {"headers": both})).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "GET", "HEAD", "OPTIONS"])
def test_a_foreign_page_may_read_only(method):
    wire = ask(guard(), method=method, headers={"origin": "http://evil.example"})
    assert wire.status == (200 if method in ("GET", "HEAD", "OPTIONS") else 403)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("LOCALHOST:9", 200),
        ("[::1]:80", 200),
        ("127.0.0.1:x", 403),
        ("me@127.0.0.1", 403),
        ("@127.0.0.1", 403),
        ("127.0.0.1/x", 403),
        ("evil.example", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("path", ["/livez", "/v1/x"])
@pytest.mark.parametrize("own", ["127.0.0.1", "LocalHost", "::1"])
def test_a_loopback_server_accepts_its_own_names_only(host, status, path, own):
    wire = ask(guard(host=own), path=path, headers={"host": host})
    assert wire.status == status
    if status == 403:
        assert wire.error["code"] == "forbidden_host"


def test_each_of_two_hosts_must_be_ours():
    scope = scope_of("/x") | {"headers": [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]}
    assert asyncio.run(call(guard(), Wire(), scope)).status == 403


def test_a_server_for_others_is_called_by_any_name():
    assert ask(guard(host="0.0.0.0"), headers={"host": "quire.example"}).status == 200


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([f"Bearer {KEY}"], 200),
        ([f"bearer  {KEY} "], 200),
        ([f"Basic {KEY}"], 401),
        ([KEY], 401),
        ([f"Bearer {KEY}x"], 401),
        (["Bearer "], 401),
        ([], 401),
        ([f"Bearer {KEY}", "Bearer x"], 401),
        ([f"Bearer {KEY}", f"Bearer {KEY}"], 401),
    ],
)
def test_one_key_by_its_scheme_opens(values, status):
    headers = [(b"host", b"127.0.0.1"), *((b"authorization", v.encode()) for v in values)]
    scope = scope_of("/v1/x") | {"headers": headers}
    wire = asyncio.run(call(guard(api_key=(KEY,)), Wire(), scope))
    assert wire.status == status
    if status == 401:
        assert wire.error["code"] == "invalid_api_key"
        assert wire.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_two_paths_are_open_spelt_exactly(path):
    draining = Lifecycle()
    draining.drain()
    locked = guard(api_key=(KEY,), lifecycle=draining)
    assert ask(locked, path=path).status == 200
    for odd in (f"{path}/", path.upper(), f"/{path}", f"{path};", "/health"):
        assert ask(locked, path=odd).status == 401


def test_a_server_that_drains_says_when_to_come_back():
    draining = Lifecycle()
    draining.drain()
    wire = ask(guard(lifecycle=draining))
    assert (wire.status, wire.error["code"]) == (503, "shutting_down")
    assert (wire.headers["retry-after"], wire.headers["connection"]) == ("1", "close")


def test_the_checks_come_in_their_order():
    draining = Lifecycle()
    draining.drain()
    locked = guard(api_key=(KEY,), lifecycle=draining, max_body_bytes=1)
    headers = {"content-length": "9", "origin": "http://evil.example", "host": "evil.example"}
    found = [ask(locked, headers=headers).error["code"]]
    for fixed in (
        {"host": "127.0.0.1:8000"},
        {"authorization": f"Bearer {KEY}"},
        {"origin": OWN_ORIGIN},
    ):
        headers |= fixed
        found.append(ask(locked, headers=headers).error["code"])
    assert found == ["forbidden_host", "invalid_api_key", "forbidden_origin", "shutting_down"]


def test_a_failure_before_the_response_is_an_error_with_the_requests_id(caplog):
    wire = ask(guard(fail))
    assert (wire.status, wire.error["code"]) == (500, "internal_error")
    assert wire.headers["x-request-id"] in wire.error["message"]
    assert f"request {wire.headers['x-request-id']} failed" in caplog.text
    assert "ValueError: a bug" in caplog.text


def test_a_failure_in_the_middle_breaks_the_response_off():
    wire = Wire()
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(call(guard(fail_late), wire, scope_of("/v1/x")))
    assert wire.num_responses == 1
    assert not wire.is_complete


def test_the_application_sees_the_id_and_the_status_of_the_response():
    seen = []

    async def note(scope, receive, send):
        await Response(status_code=201)(scope, receive, send)
        seen.append((scope["quire_request_id"], scope["quire_status"]))

    ids = [ask(guard(note)).headers["x-request-id"] for _ in "ab"]
    assert [(found, 201) for found in ids] == seen
    assert ids[0] != ids[1]
    assert ids[0].startswith("req-")
    assert ask(guard(note, api_key=(KEY,))).headers["x-request-id"].startswith("req-")


def test_the_id_of_a_client_is_taken_and_returned_also_with_a_refusal():
    mine = {"x-request-id": "mine"}
    assert ask(guard(), headers=mine).headers["x-request-id"] == "mine"
    refused = ask(guard(api_key=(KEY,)), headers=mine)
    assert (refused.status, refused.headers["x-request-id"]) == (401, "mine")


def test_metrics_need_the_key_unless_they_are_open():
    assert ask(guard(api_key=(KEY,)), path="/metrics").status == 401
    assert ask(guard(api_key=(KEY,), open_metrics=True), path="/metrics").status == 200
    assert ask(guard(api_key=(KEY,), open_metrics=True), path="/metricsx").status == 401


def test_with_a_health_port_open_metrics_are_open_there_only():
    app = guard(api_key=(KEY,), open_metrics=True, health_port=8001)
    assert ask(app, path="/metrics").status == 401
    authorized = {"authorization": f"Bearer {KEY}"}
    assert ask(app, path="/metrics", headers=authorized).status == 200


def test_metrics_are_served_while_the_server_drains():
    lifecycle = Lifecycle()
    lifecycle.drain()
    assert ask(guard(lifecycle=lifecycle), path="/metrics").status == 200
    assert ask(guard(lifecycle=lifecycle), path="/v1/models").status == 503


@pytest.mark.parametrize(
    ("path", "settings", "address", "client"),
    [
        ("/v1/x", {}, ("10.0.0.7", 5), "10.0.0.7"),
        ("/v1/x", {}, None, "local"),
        ("/v1/x", {"api_key": (KEY,)}, ("10.0.0.7", 5), KEY_NAME),
        ("/livez", {"api_key": (KEY,)}, ("10.0.0.7", 5), "10.0.0.7"),
    ],
)
def test_a_client_is_the_name_of_its_key_or_its_address(path, settings, address, client):
    seen = []

    async def note(scope, receive, send):
        seen.append(scope["quire_client"])
        await Response()(scope, receive, send)

    headers = {"authorization": f"Bearer {KEY}"}
    assert ask(guard(note, **settings), path=path, headers=headers, client=address).status == 200
    assert seen == [client]


def test_a_503_names_the_measured_wait():
    lifecycle = Lifecycle()
    lifecycle.drain()
    guarded = Guard(count, ServerSettings(), lifecycle, Accounts.load(ServerSettings()))
    assert "retry-after-ms" not in ask(guarded).headers
    lifecycle.wait_s = lambda: 6.25
    headers = ask(guarded).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("7", "6250")


def test_the_arrival_of_a_request_is_noted_unless_the_server_knows_better():
    seen = []

    async def note(scope, receive, send):
        seen.append(scope["quire_arrival_s"])
        await Response()(scope, receive, send)

    before_s = time.monotonic()
    ask(guard(note))
    assert before_s <= seen[0] <= time.monotonic()
    ask(guard(note), quire_arrival_s=3.5)
    assert seen[1] == 3.5


@pytest.mark.parametrize("app", [count, fail, fail_late])
def test_a_request_is_in_flight_until_it_is_over(app):
    lifecycle, seen = Lifecycle(), []

    async def watched(scope, receive, send):
        seen.append(lifecycle.num_in_flight)
        await app(scope, receive, send)

    guarded = guard(watched, lifecycle)
    for headers in ({}, {"host": "evil.example"}):
        wire = Wire()
        try:
            asyncio.run(call(guarded, wire, scope_of("/v1/x", headers=headers)))
        except ValueError:
            assert app is fail_late
        assert lifecycle.num_in_flight == 0
    assert seen == [1]


def test_a_request_that_is_cancelled_is_over_too():
    async def main():
        lifecycle = Lifecycle()

        async def wait(scope, receive, send):
            await asyncio.Event().wait()

        running = asyncio.create_task(call(guard(wait, lifecycle), Wire(), scope_of("/v1/x")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lifecycle.num_in_flight == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert lifecycle.num_in_flight == 0

    asyncio.run(main())


def test_a_websocket_is_closed_and_the_lifespan_let_through():
    seen = []

    async def note(scope, receive, send):
        seen.append(scope["type"])

    wire = Wire()
    for kind in ("websocket", "lifespan"):
        asyncio.run(guard(note)({"type": kind}, wire.receive, wire.send))
    assert seen == ["lifespan"]
    assert wire.sent == [{"type": "websocket.close", "code": 1008}]


def test_reading_needs_no_origin():
    assert get(guard(), "/v1/x").status == 200
