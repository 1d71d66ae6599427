"""A plugin that raises, hangs, or returns what is no JSON fails its own request only."""

import asyncio
import sys
import time

import msgspec
import pytest
from asgi_parts import JSON, Wire, call, post, scope_of
from route_parts import PATH, loaded

from quire import SamplingParams
from quire.config import ServerSettings
from quire.errors import EngineDeadError, InvalidRequestError
from quire.interfaces.http_route import RouteRefusedError
from quire.server.app import create_app

NAME = "HTTP route 'acme_try' of plugin acme_routes (acme-routes 1)"


@pytest.fixture
def make_app(frontend):
    def make(respond):
        return create_app(frontend, ServerSettings(), list, routes=[loaded(respond)])

    return make


def raising(error):
    def respond(request):
        raise error

    return respond


@pytest.mark.parametrize(
    "error",
    [
        ValueError("/secret/path"),
        SystemExit(3),
        KeyError("x"),
        TimeoutError("own"),
        asyncio.CancelledError("own"),
        GeneratorExit("own"),
        StopAsyncIteration("own"),
    ],
)
def test_an_error_of_the_plugin_is_a_500_with_its_name_and_the_log_has_the_traceback(
    make_app, caplog, error
):
    failed = post(make_app(raising(error)), PATH)
    assert (failed.status, failed.error["code"]) == (500, "request_failed")
    assert NAME in failed.error["message"]
    assert "secret" not in failed.error["message"]
    assert NAME in caplog.text
    assert type(error).__name__ in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("no such city", param="city"), 400, "invalid_request"),
        (RouteRefusedError("gone", status=410, code="city_gone", param="city"), 410, "city_gone"),
        (EngineDeadError("dead"), 503, "engine_dead"),
    ],
)
def test_refusals_have_the_status_and_code_that_they_say(make_app, error, status, code):
    refused = post(make_app(raising(error)), PATH)
    assert (refused.status, refused.error["code"]) == (status, code)
    if status < 500:
        assert (refused.error["message"], refused.error["param"]) == (str(error), "city")


@pytest.mark.parametrize("status", [200, 500, "404", None])
def test_a_refusal_with_a_status_that_is_none_is_a_failure_of_the_plugin(make_app, caplog, status):
    def respond(request):
        raise RouteRefusedError("no", status=status)

    assert post(make_app(respond), PATH).status == 500
    assert NAME in caplog.text
    assert f"a number from 400 to 499, got {status!r}" in caplog.text


def test_a_task_of_the_plugin_that_was_cancelled_is_a_failure_of_the_plugin(make_app, caplog):
    async def respond(request):
        task = asyncio.create_task(asyncio.sleep(30))
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        await task

    assert post(make_app(respond), PATH).status == 500
    assert NAME in caplog.text


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_a_stream_whose_plugin_cancels_itself_ends_with_an_error_event(make_app, caplog, kind):
    async def events():
        yield 1
        raise kind

    first, last = post(make_app(lambda request: events()), PATH).events
    assert first == 1
    assert NAME in last["error"]["message"]
    assert NAME in caplog.text


def test_a_task_that_is_dropped_is_no_failure_of_the_plugin(make_app, caplog):
    async def respond(request):
        await asyncio.sleep(30)

    loop = asyncio.new_event_loop()
    call_ = call(make_app(respond), Wire(b"{}"), scope_of(PATH, headers=JSON))
    task = loop.create_task(call_)
    loop.run_until_complete(asyncio.sleep(0.1))
    assert not task.done()
    call_.close()
    task._log_destroy_pending = False
    loop.close()
    assert NAME not in caplog.text


def test_raw_json_of_several_lines_is_one_line_of_a_stream(make_app):
    raw = msgspec.Raw(b'{"a":\n\n1,\r "b": "x\\ny"}')

    async def events():
        yield raw
        yield {"c": raw}

    stream = post(make_app(lambda request: events()), PATH)
    assert stream.events == [{"a": 1, "b": "x\ny"}, {"c": {"a": 1, "b": "x\ny"}}]
    assert post(make_app(lambda request: raw), PATH).json() == {"a": 1, "b": "x\ny"}


@pytest.mark.parametrize("value", [object(), {1j}, float, {"x": object()}])
def test_a_response_that_is_no_json_is_a_failure_of_the_plugin(make_app, caplog, value):
    assert post(make_app(lambda request: value), PATH).status == 500
    assert NAME in caplog.text


@pytest.mark.parametrize("value", [None, 1, "x", [], {"a": [1.5, None]}])
def test_any_json_is_a_response(make_app, value):
    assert post(make_app(lambda request: value), PATH).json() == value


def test_a_stream_that_fails_before_its_first_event_has_a_status(make_app):
    async def events():
        raise InvalidRequestError("no", param="text")
        yield

    refused = post(make_app(lambda request: events()), PATH)
    assert (refused.status, refused.error["param"]) == (400, "text")


@pytest.mark.parametrize("bad", [ValueError("x"), object()])
def test_a_stream_that_fails_later_ends_with_an_error_event(make_app, caplog, bad):
    async def events():
        yield {"n": 1}
        if isinstance(bad, Exception):
            raise bad
        yield bad

    first, last = post(make_app(lambda request: events()), PATH).events
    assert first == {"n": 1}
    assert NAME in last["error"]["message"]
    assert NAME in caplog.text


def test_other_requests_go_on_beside_one_that_fails(make_app, frontend):
    async def respond(request):
        if request.body.number:
            raise ValueError
        (piece,) = await request.generate("Once", SamplingParams(max_tokens=50)).whole()
        return piece.text

    app = make_app(respond)

    async def all_at_once():
        bodies = [b'{"number": 1}', b"{}"] * 4
        return await asyncio.gather(
            *(call(app, Wire(body), scope_of(PATH, headers=JSON)) for body in bodies)
        )

    statuses = [wire.status for wire in asyncio.run(all_at_once())]
    assert statuses == [500, 200] * 4


def test_a_route_that_takes_too_long_is_cancelled(make_app, frontend, monkeypatch):
    ended = []

    async def respond(request):
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    monkeypatch.setattr(frontend, "_request_timeout_s", 0.2)
    began = time.monotonic()
    failed = post(make_app(respond), PATH)
    assert (failed.status, failed.error["code"]) == (504, "request_timeout")
    assert ended
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("num_read", [0, 1, 2])
def test_a_client_that_leaves_ends_the_route_and_its_completions(
    make_app, frontend, core, num_read
):
    core.script.by_prompt = {"Once": "one two three four five six seven eight nine ten " * 5}
    core.step_s, closed = 0.01, []

    async def events(request):
        try:
            async for piece in request.generate("Once", SamplingParams(max_tokens=400)):
                yield piece.text
        finally:
            closed.append(sys.exc_info()[0])

    app = make_app(events)

    class Leaving(Wire):
        async def send(self, message):
            await super().send(message)
            if len(self.sent) > num_read:
                self.gone.set()

    wire = Leaving(b"{}")
    if num_read == 0:
        wire.gone.set()
    asyncio.run(call(app, wire, scope_of(PATH, headers=JSON)))
    assert wire.body.count(b"data:") <= num_read
    assert not frontend.dispatch.streams()
    assert len(closed) == 1


def test_an_iterator_that_fails_to_close_is_only_logged(make_app, caplog):
    async def events():
        try:
            yield 1
            yield 2
        finally:
            raise ValueError("at the end")

    async def leave():
        wire, scope = Wire(b"{}", num_read=2), scope_of(PATH, headers=JSON)
        task = asyncio.create_task(call(make_app(lambda r: events()), wire, scope))
        while len(wire.sent) < 2:
            await asyncio.sleep(0)
        wire.gone.set()
        await task

    asyncio.run(leave())
    assert NAME in caplog.text
