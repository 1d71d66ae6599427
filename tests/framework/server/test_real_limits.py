"""What a request may ask of the scheduler and the cache, over HTTP and from a real engine."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI
from server_parts import Served, start_server, stop_servers

from quire.config import Settings
from quire.launch import start_engine

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again and again. " * 4


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)])
def real(request: pytest.FixtureRequest) -> Iterator[Served]:
    options = {
        "model": "demo",
        "scheduling_policy": "priority",
        "engine_process": request.param,
        "num_kv_blocks": 1000,
    }
    engine = start_engine(Settings.from_options(options))
    served = start_server(engine.core, engine.async_frontend(), admin_key=("sesame",))
    yield served
    stop_servers([served])


@pytest.fixture
def client(real: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=3, timeout=60) as made:
        yield made


def reset(real):
    headers = {"authorization": "Bearer sesame"}
    return httpx.post(f"{real.url}/reset_prefix_cache", headers=headers).json()


def cached(client, **extra_body):
    response = client.completions.create(
        model="demo", prompt=TEXT, max_tokens=2, extra_body=extra_body
    )
    return response.usage.prompt_tokens_details.cached_tokens


def test_a_second_prompt_is_cached_under_its_own_salt_until_the_reset(client, real):
    assert cached(client, cache_salt="é") == 0
    hit = cached(client, cache_salt="é")
    assert hit >= 16
    assert cached(client, cache_salt="e") == 0
    assert cached(client) == 0
    assert reset(real) == {"status": "reset"}
    assert cached(client, cache_salt="é") == 0
    assert cached(client, cache_salt="é") == hit


def test_after_a_reset_what_a_running_request_holds_is_not_found(client, real):
    fields = {"model": "demo", "prompt": TEXT, "max_tokens": 4, "temperature": 0}
    salt = {"cache_salt": "running"}
    fresh = client.completions.create(**fields, extra_body={"cache_salt": "fresh"})
    body = fields | {"max_tokens": 800, "stream": True, "ignore_eos": True} | salt
    with httpx.stream("POST", f"{real.url}/v1/completions", json=body, timeout=30) as running:
        events = running.iter_lines()
        while not next(events).startswith("data: {"):
            pass
        assert cached(client, **salt) >= 16
        for _ in range(3):
            assert reset(real) == {"status": "reset"}
            after = client.completions.create(**fields, extra_body=salt)
            assert after.usage.prompt_tokens_details.cached_tokens == 0
            assert after.choices[0].text == fresh.choices[0].text
        assert real.frontend.dispatch.stats.num_running == 1
        said = [line for line in events if line.startswith("data: ")]
    assert said[-1] == "data: [DONE]"
    assert "error" not in said[-2]


def test_several_completions_of_a_new_prompt_found_nothing_in_the_cache(client):
    assert cached(client, cache_salt="n", n=4) == 0


def test_echo_tells_what_prompt_logprobs_tell(client, real):
    fields = {"model": "demo", "prompt": TEXT, "max_tokens": 3, "temperature": 0}
    echoed = client.completions.create(**fields, echo=True, logprobs=2).choices[0]
    asked = client.completions.create(**fields, extra_body={"prompt_logprobs": 2}).choices[0]
    rows = asked.prompt_logprobs
    assert rows[0] is None
    assert echoed.text == TEXT + asked.text
    chosen = [next(iter(row.values()))["logprob"] for row in rows[1:]]
    assert echoed.logprobs.token_logprobs[1 : len(rows)] == pytest.approx(chosen)
    pieces = [
        choice
        for chunk in client.completions.create(**fields, echo=True, logprobs=2, stream=True)
        for choice in chunk.choices
    ]
    given = [value for piece in pieces for value in piece.logprobs.token_logprobs]
    assert given[1:] == pytest.approx(echoed.logprobs.token_logprobs[1:])


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_is_not_sent_again(client, stream):
    fields = {"prompt": "One", "max_tokens": 900, "stream": stream}
    with pytest.raises(openai.APIError, match=r"its timeout_s is 0\.02 s") as caught:
        list(
            client.completions.create(
                model="demo", **fields, extra_body={"timeout_s": 0.02, "ignore_eos": True}
            )
        )
    assert caught.value.code == "request_timeout"


def test_a_priority_is_taken(client):
    response = client.completions.create(
        model="demo", prompt="One", max_tokens=2, extra_body={"priority": -5}
    )
    assert response.usage.completion_tokens == 2
