"""Each state of a server has one status, and nothing that asks for it computes."""

import asyncio
import threading

import pytest
from asgi_parts import Wire, call, get, scope_of
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire import __version__
from quire.config import ServerSettings
from quire.sampling_params import SamplingParams
from quire.server.app import create_app
from quire.server.http.lifecycle import Lifecycle

REPORT = [{"name": "scripted", "state": "loaded"}, {"name": "other", "state": "failed"}]


class Hanging(ScriptedCore):
    """A core whose steps hang until they are released."""

    def __init__(self, script):
        super().__init__(script)
        self.let_go = threading.Event()

    def step(self):
        self.let_go.wait(20)
        return super().step()


class Case:
    """An application, and what its responses depend on."""

    def __init__(self, tokenizer):
        self.core = Hanging(Texts(tokenizer))
        self.frontend = make_frontend(tokenizer, self.core, stall_limit_s=0.02)
        self.lifecycle = Lifecycle()
        settings = ServerSettings()
        self.app = create_app(self.frontend, settings, lambda: REPORT, self.lifecycle)

    def asked(self, path="/readyz"):
        wire = get(self.app, path)
        return wire.status, wire.json().get("status")


@pytest.fixture
def case(tokenizer):
    made = Case(tokenizer)
    yield made
    made.core.let_go.set()
    asyncio.run(made.frontend.shutdown())


def test_a_server_that_serves_is_ready(case):
    for path in ("/readyz", "/health"):
        assert case.asked(path) == (200, "ready")
    assert case.asked("/livez") == (200, "alive")


def test_a_server_that_drains_is_alive_and_not_ready(case):
    case.lifecycle.drain()
    assert case.asked() == (503, "draining")
    assert case.asked("/livez") == (200, "alive")
    assert get(case.app, "/version").status == 503  # it takes nothing else


def test_an_engine_whose_step_hangs_is_stalled(case, wait_for):
    async def main():
        await case.frontend.submit("x", SamplingParams(max_tokens=2))

    asyncio.run(main())
    assert wait_for(lambda: case.asked() == (503, "stalled"))
    assert case.asked("/health") == (503, "stalled")
    assert case.asked("/livez") == (200, "alive")


def test_a_dead_engine_is_not_ready(case, wait_for):
    case.core.is_dead = True
    assert wait_for(lambda: case.asked() == (503, "not ready"))
    assert case.asked("/health") == (503, "not ready")
    assert case.asked("/livez") == (200, "alive")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_says_that_the_server_runs(case, method):
    """Ollama's command line asks it before anything else."""
    wire = asyncio.run(call(case.app, Wire(), scope_of("/", method)))
    assert wire.status == 200
    assert wire.headers["content-type"] == "text/plain; charset=utf-8"
    assert method == "HEAD" or wire.body == b"quire is running\n"


def test_the_version_and_the_plugins_are_reported(case):
    assert get(case.app, "/version").json() == {"version": __version__}
    assert get(case.app, "/v1/plugins").json() == {"object": "list", "data": REPORT}
