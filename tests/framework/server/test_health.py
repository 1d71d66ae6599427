"""Each state of a server has one status, and nothing that asks for it computes."""

import asyncio

import pytest
from asgi_parts import get
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire import __version__
from quire.config import ServerSettings
from quire.sampling_params import SamplingParams
from quire.server.app import create_app
from quire.server.lifecycle import Lifecycle

REPORT = [{"name": "scripted", "state": "loaded"}, {"name": "other", "state": "failed"}]


class Case:
    """An application, and what its answers depend on."""

    def __init__(self, tokenizer):
        self.core = ScriptedCore(Texts(tokenizer))
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
    made.core.step_s = 0.0
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
        case.core.step_s = 0.3
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


def test_what_it_is_made_of_is_told(case):
    assert get(case.app, "/version").json() == {"version": __version__}
    assert get(case.app, "/v1/plugins").json() == {"object": "list", "data": REPORT}
