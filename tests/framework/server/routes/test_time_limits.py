"""A request's time counts from its arrival: once it is over, nothing more is done for it."""

import asyncio
import json
import time

import pytest
from asgi_parts import JSON, Wire, call, scope_of
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire.config import ServerSettings
from quire.server.app import create_app

CHAT = {"messages": [{"role": "user", "content": "Once"}]}
ROUTES = [
    ("/v1/completions", {"prompt": "Once"}),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"input": "Once"}),
]


def ask(app, path, age_s=0.0, wire=None, **body):
    """Send a request that arrived some seconds ago."""
    arrival_s = time.monotonic() - age_s
    scope = scope_of(path, headers=JSON, quire_arrival_s=arrival_s)
    return asyncio.run(call(app, wire or Wire(json.dumps(body).encode()), scope))


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


@pytest.fixture
def encoded(frontend, monkeypatch):
    """The prompts that are tokenized, from now on."""
    seen = []
    encode = frontend.intake.encode
    monkeypatch.setattr(frontend.intake, "encode", lambda p: seen.append(p) or encode(p))
    return seen


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waited_too_long_is_refused_without_work(
    app, core, encoded, path, body, stream
):
    wire = ask(app, path, age_s=6.1, timeout_s=2, stream=stream, **body)
    assert (wire.status, wire.error["code"]) == (504, "request_timeout")
    assert "s after its arrival, and its timeout_s is 2 s" in wire.error["message"]
    assert wire.headers["x-should-retry"] == "false"
    assert not encoded
    assert not core.requests


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_the_engine_gets_the_time_of_arrival(app, core, path, body):
    assert ask(app, path, age_s=5.0, timeout_s=30, **body).status == 200
    (request,) = core.requests
    assert time.monotonic() - request.arrival_s >= 5.0
    assert request.deadline_s(None) == pytest.approx(request.arrival_s + 30)


def test_all_prompts_of_a_request_have_one_clock(app, core):
    assert ask(app, "/v1/completions", age_s=5.0, prompt=["a", "b", "c"]).status == 200
    assert len({request.arrival_s for request in core.requests}) == 1


def test_a_body_that_does_not_come_is_not_waited_for_beyond_the_servers_limit(tokenizer):
    core = ScriptedCore(Texts(tokenizer))
    frontend = make_frontend(tokenizer, core, request_timeout_s=2.0)
    wire = Wire()
    wire._pieces.clear()
    found = ask(create_app(frontend, ServerSettings(), list), "/v1/completions", 1.95, wire)
    assert (found.status, found.error["code"]) == (504, "request_timeout")
    assert "the request_timeout_s here is 2 s" in found.error["message"]
    asyncio.run(frontend.shutdown())


def test_a_timeout_that_is_no_time_is_refused_as_such(app):
    wire = ask(app, "/v1/completions", age_s=9.0, prompt="Once", timeout_s=-1)
    assert (wire.status, wire.error["param"]) == (400, "timeout_s")
