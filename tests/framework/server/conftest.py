"""A real frontend over an engine that answers from a script, behind a real server."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from openai import OpenAI
from scripted_core import ScriptedCore
from server_parts import CHECKPOINT, Served, Texts, make_frontend, start_server, stop_servers

from quire.frontend.answer import AnswerParsers
from quire.frontend.request_hooks import RequestHook
from quire.frontend.tokenizer import Tokenizer

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
        parsers: AnswerParsers | None = None,
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
    core = module_server.core
    module_server.texts.by_prompt = {}
    core.step_s, core.tokens_per_step, core.max_queued = 0.0, 1, 1000
    core.prompt_chunk, core.num_cached_tokens, core.max_num_seqs = 1000, 0, 1000
    core.controls.clear()
    core.requests.clear()
    core.aborted.clear()
    return module_server


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """OpenAI's own client, which checks the types of every answer."""
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
