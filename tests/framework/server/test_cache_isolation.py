"""No key finds prompts of another key in the prefix cache of a real engine: counts, not times."""

from collections.abc import Callable

import httpx
import pytest
from server_parts import start_server, stop_servers

from quire.config import Settings
from quire.launch import start_engine

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again and again. " * 4
KEYS = ("sk-a", "sk-b", "sk-c")


@pytest.fixture(scope="module")
def cached() -> Callable[..., int]:
    """Return a function that returns the cached tokens of a prompt on a server with settings."""
    running = {}

    def ask(key, *, cache_salt=None, shared=False, text=TEXT):
        if shared not in running:
            engine = start_engine(Settings.from_options({"model": "demo", "num_kv_blocks": 1000}))
            frontend = engine.async_frontend()
            running[shared] = start_server(
                engine.core, frontend, api_key=KEYS, share_prefix_cache=shared
            )
        body = {"prompt": text, "max_tokens": 1, "cache_salt": cache_salt}
        response = httpx.post(
            f"{running[shared].url}/v1/completions",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )
        return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    yield ask
    stop_servers(list(running.values()))


def test_a_key_finds_its_own_prompts_and_those_of_no_other_key(cached):
    assert cached("sk-a") == 0
    hit = cached("sk-a")
    assert hit >= 16
    assert cached("sk-b") == 0
    assert cached("sk-b") == hit
    assert cached("sk-c", cache_salt="sk-a") == 0


def test_the_salt_of_a_request_divides_the_cache_of_its_key(cached):
    text = "Another story. " * 20
    assert cached("sk-a", text=text, cache_salt="x") == 0
    assert cached("sk-a", text=text) == 0
    assert cached("sk-a", text=text, cache_salt="y") == 0
    assert cached("sk-a", text=text, cache_salt="x") >= 16
    assert cached("sk-b", text=text, cache_salt="x") == 0


def test_keys_that_share_find_each_others_prompts(cached):
    assert cached("sk-a", shared=True) == 0
    assert cached("sk-b", shared=True) >= 16
    assert cached("sk-b", shared=True, cache_salt="x") == 0
