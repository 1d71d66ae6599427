"""A request as a call of an application elsewhere: its response as pieces, and a disconnect."""

import asyncio
import time

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from quire.server.asgi_call import HTTPCall, ResponseStart, respond

HEADERS = [(b"content-type", b"application/json"), (b"x-one", b"1"), (b"x-one", b"2")]


def call(path="/echo", body=b"{}", method="POST"):
    return HTTPCall(method, path, b"a=b", HEADERS, body, "req-7", "acme")


async def echo(request: Request):
    return JSONResponse(
        {
            "body": (await request.body()).decode(),
            "query": dict(request.query_params),
            "ones": request.headers.getlist("x-one"),
            "id": request.scope["quire_request_id"],
            "client": request.scope["quire_client"],
        },
        201,
        {"x-two": "2"},
    )


async def stream(request: Request):
    async def pieces():
        for piece in (b"one", b"two"):
            yield piece

    return StreamingResponse(pieces(), media_type="text/event-stream")


async def fail(request: Request):
    raise RuntimeError("a defect")


async def collect(app, made):
    first, *rest = [item async for item in respond(app, made)]
    return msgspec.msgpack.decode(first, type=ResponseStart), rest


APP = Starlette(
    routes=[
        Route("/echo", echo, methods=["POST"]),
        Route("/stream", stream, methods=["POST"]),
        Route("/fail", fail, methods=["POST"]),
    ]
)


def test_the_application_sees_the_whole_request_and_its_response_is_whole():
    made = msgspec.msgpack.decode(msgspec.msgpack.encode(call(body=b'{"x": 1}')), type=HTTPCall)
    start, pieces = asyncio.run(collect(APP, made))
    assert start.status == 201
    assert (b"x-two", b"2") in start.headers
    assert not start.is_event_stream
    found = msgspec.json.decode(b"".join(pieces))
    assert found == {
        "body": '{"x": 1}',
        "query": {"a": "b"},
        "ones": ["1", "2"],
        "id": "req-7",
        "client": "acme",
    }


def test_pieces_of_a_stream_are_not_joined():
    start, pieces = asyncio.run(collect(APP, call("/stream")))
    assert start.is_event_stream
    assert pieces == [b"one", b"two"]


def test_an_error_of_the_application_is_raised():
    with pytest.raises(RuntimeError, match="a defect"):
        asyncio.run(collect(APP, call("/fail")))


def test_closing_early_is_a_disconnect():
    seen = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await receive())["type"] == "http.request"
        try:
            seen.append((await receive())["type"])
            raise ClientDisconnect
        finally:
            seen.append("ended")

    async def leave():
        items = respond(app, call())
        await anext(items)
        await items.aclose()

    asyncio.run(leave())
    assert seen[-1] == "ended"


def test_a_response_that_is_not_read_stops_its_application():
    num_sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for index in range(10_000):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            num_sent.append(index)

    async def read_one():
        items = respond(app, call())
        await anext(items)
        await asyncio.sleep(0.05)
        await items.aclose()

    asyncio.run(read_one())
    assert 0 < len(num_sent) < 100


def test_a_scope_without_the_guards_id_is_no_call():
    scope = call().scope()
    assert msgspec.structs.replace(HTTPCall.of(scope, b"{}"), age_s=0.0) == call()
    del scope["quire_request_id"]
    with pytest.raises(KeyError):
        HTTPCall.of(scope, b"")


def test_a_request_has_the_same_age_on_another_machine():
    scope = call().scope() | {"quire_arrival_s": time.monotonic() - 7.0}
    made = HTTPCall.of(scope, b"{}")
    assert made.age_s == pytest.approx(7.0, abs=1.0)
    there = made.scope()["quire_arrival_s"]
    assert time.monotonic() - there >= 7.0
