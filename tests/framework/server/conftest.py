"""A real frontend over an engine that plays a script, behind a real server."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from scripted_core import ScriptedCore
from server_parts import CHECKPOINT, Served, Texts, make_frontend, start_server, stop_servers

from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from openai import OpenAI

Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


@pytest.fixture(scope="module")
def serve(tokenizer: Tokenizer) -> Iterator[Serve]:
    """Start servers; stop all of them at the end of the module."""
    running: list[Served] = []

    def start(
        *,
        parsers: CompletionParsers | None = None,
        received_hooks: Sequence[RequestHook] = (),
        stall_limit_s: float = 60.0,
        **settings: Any,
    ) -> Served:
        core = ScriptedCore(Texts(tokenizer))
        frontend = make_frontend(
            tokenizer, core, parsers, received_hooks, stall_limit_s=stall_limit_s
        )
        running.append(start_server(core, frontend, **settings))
        return running[-1]

    yield start
    stop_servers(running)


@pytest.fixture(scope="module")
def module_server(serve: Serve) -> Served:
    return serve()


@pytest.fixture
def served(module_server: Served) -> Served:
    """The module's server, its script empty."""
    reset(module_server.core)
    return module_server


def reset(core: ScriptedCore) -> None:
    """Make a core as new."""
    core.script.by_prompt = {}
    core.step_s, core.tokens_per_step, core.max_queued = 0.0, 1, 1000
    core.prompt_chunk, core.num_cached_tokens, core.max_num_seqs = 1000, 0, 1000
    core.controls.clear()
    core.requests.clear()
    core.aborted.clear()


@pytest.fixture(scope="module")
def module_core(tokenizer: Tokenizer) -> ScriptedCore:
    return ScriptedCore(Texts(tokenizer))


@pytest.fixture(scope="module")
def module_frontend(tokenizer: Tokenizer, module_core: ScriptedCore) -> Iterator[AsyncFrontend]:
    frontend = make_frontend(tokenizer, module_core)
    yield frontend
    asyncio.run(frontend.shutdown())


@pytest.fixture
def core(module_core: ScriptedCore) -> ScriptedCore:
    """The core of `frontend`, its script empty."""
    reset(module_core)
    return module_core


@pytest.fixture
def frontend(module_frontend: AsyncFrontend, core: ScriptedCore) -> AsyncFrontend:
    """A frontend over a script, without any server."""
    del core
    return module_frontend


@pytest.fixture
def client(served: Served) -> "Iterator[OpenAI]":
    """OpenAI's own client, which checks the types of every response."""
    from openai import OpenAI  # takes seconds, and most tests do without

    with OpenAI(
        base_url=f"{served.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=20,
        _strict_response_validation=True,
    ) as made:
        yield made


@pytest.fixture
def wait_for() -> Callable[..., bool]:
    """Wait until a condition holds; return whether it did."""

    def wait(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.005)
        return False

    return wait
