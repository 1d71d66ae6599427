"""The load is the number of requests that the engine has and has not ended."""

import asyncio
import json

import pytest
from asgi_parts import JSON, Wire, call, get, post, scope_of

from quire.config import ServerSettings
from quire.server.app import create_app

LOAD = "/load"


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


def test_without_requests_it_is_zero(app):
    assert get(app, LOAD).json() == {"server_load": 0}
    assert post(app, LOAD).status == 405


def test_each_completion_of_each_request_counts_until_it_has_ended(app, core):
    core.step_s = 0.01
    body = {"prompt": ["x", "y"], "n": 2, "max_tokens": 400, "ignore_eos": True}

    async def main():
        scope = scope_of("/v1/completions", headers=JSON)
        running = asyncio.create_task(call(app, Wire(json.dumps(body).encode()), scope))
        found = []
        for _ in range(1000):
            wire = await call(app, Wire(), scope_of(LOAD, "GET"))
            found.append(wire.json()["server_load"])
            if found[-1] == 4:
                break
            await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        last = (await call(app, Wire(), scope_of(LOAD, "GET"))).json()["server_load"]
        return found, last

    found, last = asyncio.run(main())
    assert (found[-1], last) == (4, 0)


def test_it_needs_the_key(frontend):
    app = create_app(frontend, ServerSettings(api_key=("sk-1",)), list)
    assert get(app, LOAD).status == 401
