"""The demo model behind a real engine and a real server: nothing here is scripted."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from server_parts import Served, start_server, stop_servers

from quire.config import Settings
from quire.frontend.intake.intake import Intake
from quire.launch import Engine, start_engine

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "is_city": {"type": "boolean"}},
    "required": ["name", "is_city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

ServeModel = Callable[..., Served]


@pytest.fixture(scope="module")
def serve_model() -> Iterator[ServeModel]:
    """Start engines with their servers; stop all of them at the end of the module."""
    running: list[Served] = []

    def start(change: Callable[[Engine], Engine] = lambda engine: engine, **options: Any) -> Served:
        engine = change(start_engine(Settings.from_options({"model": "demo"} | options)))
        running.append(start_server(engine.core, engine.async_frontend()))
        return running[-1]

    yield start
    stop_servers(running)


@pytest.fixture(scope="module")
def demo(serve_model: ServeModel) -> Served:
    return serve_model(max_num_seqs=8)


@pytest.fixture
def client(demo: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: OpenAI, text: str = "What is quire?", **fields: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 40} | fields
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo", messages=messages, **options)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "temperature": 1, "seed": 7},
        {"stop": ["e"]},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
    ],
)
def test_streamed_and_full_completions_are_equal(client, fields):
    whole = {choice.index: choice for choice in ask(client, **fields).choices}
    texts = dict.fromkeys(whole, "")
    calls = dict.fromkeys(whole, "")
    finishes = {}
    for choice in (c for chunk in ask(client, stream=True, **fields) for c in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            calls[choice.index] += (call.function.name or "") + (call.function.arguments or "")
        if choice.finish_reason:
            finishes[choice.index] = choice.finish_reason
    assert texts == {i: choice.message.content or "" for i, choice in whole.items()}
    assert finishes == {i: choice.finish_reason for i, choice in whole.items()}
    for i, choice in whole.items():
        made = choice.message.tool_calls or []
        assert calls[i] == "".join(c.function.name + c.function.arguments for c in made)
        assert texts[i] or calls[i] or "stop" in fields


def test_a_completion_follows_its_schema(client):
    constraint = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    choice = ask(client, "Oslo is a city.", response_format=constraint, max_tokens=200).choices[0]
    place = json.loads(choice.message.content)
    assert choice.finish_reason == "stop"
    assert isinstance(place["name"], str)
    assert isinstance(place["is_city"], bool)


@pytest.mark.parametrize(
    ("choice", "end"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "stop"),
    ],
)
def test_a_call_that_is_required_is_made(client, choice, end):
    fields = {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    response = ask(client, "Tell me a story.", max_tokens=200, **fields).choices[0]
    assert response.finish_reason == end
    (call,) = response.message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"regex": "(never closed"}},
        {"structured_outputs": {"regex": "a", "backend": "nobody"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "minProperties": 2}},
            }
        },
    ],
)
def test_a_grammar_that_cannot_be_honoured_is_the_clients_error(demo, client, constraint, stream):
    body = {"messages": HI, "max_tokens": 5, "stream": stream} | constraint
    response = httpx.post(f"{demo.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_grammar"
    assert ask(client, max_tokens=2).usage.completion_tokens == 2


def test_a_full_queue_turns_some_away_and_serves_the_others(serve_model):
    served = serve_model(max_num_seqs=1, max_num_queued=1)
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}

    def post(_: int) -> httpx.Response:
        return httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)

    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(post, range(12)))
    refused = [response for response in responses if response.status_code == 503]
    taken = [response for response in responses if response.status_code == 200]
    assert len(refused) + len(taken) == 12
    assert refused
    assert taken
    assert {response.json()["usage"]["completion_tokens"] for response in taken} == {400}
    for response in refused:
        assert response.json()["error"]["code"] == "overloaded"
        assert 1 <= int(response.headers["retry-after"]) <= 60
    assert post(0).status_code == 200


def test_several_completions_that_do_not_fit_the_queue_are_refused_together(serve_model):
    served = serve_model(max_num_seqs=1, max_num_queued=2)
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.completions.create(model="demo", prompt="Once", n=5, max_tokens=50)
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    httpx.post(f"{served.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=60)
    assert not served.core.has_work()  # the requests that fitted the queue were aborted


def test_what_does_not_fit_the_cache_is_refused_as_too_long(serve_model):
    served = serve_model(num_kv_blocks=6)
    (card,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    body = {"prompt": [300] * card["max_model_len"], "max_tokens": 1}
    response = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    body["prompt"].pop()
    assert httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_what_the_engine_itself_has_no_room_for_is_refused_as_too_long(serve_model):
    def believe_in_more_room(engine: Engine) -> Engine:
        intake = Intake(
            engine.tokenizer,
            max_model_len=1024,
            vocab_size=engine.composition.description.vocab_size,
            fields=engine.composition.sampler_fields,
        )
        return replace(engine, intake=intake)

    served = serve_model(believe_in_more_room, num_kv_blocks=6)
    body = {"prompt": "Once", "max_tokens": 500}
    response = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "KV blocks" in response.json()["error"]["message"]
    body["max_tokens"] = 4
    assert httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_beams_are_searched_over_http(demo: Served):
    body = {"model": "demo", "prompt": "What is", "max_tokens": 8, "n": 3, "use_beam_search": True}
    found = httpx.post(f"{demo.url}/v1/completions", json=body | {"logprobs": 1}).json()
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    texts = [choice["text"] for choice in found["choices"]]
    assert len(set(texts)) == 3
    assert found["usage"]["completion_tokens"] == sum(
        len(choice["logprobs"]["tokens"]) for choice in found["choices"]
    )
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in found["choices"]]
    lengths = [len(choice["logprobs"]["tokens"]) for choice in found["choices"]]
    means = [total / length for total, length in zip(sums, lengths, strict=True)]
    assert means == sorted(means, reverse=True)
    stream = httpx.post(f"{demo.url}/v1/completions", json=body | {"stream": True}).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    streamed = {choice["index"]: choice["text"] for each in events for choice in each["choices"]}
    assert [streamed[index] for index in range(3)] == texts, "whole, at the end"


def test_a_chat_is_searched_with_the_fields_of_a_beam_search(client: OpenAI):
    fields = {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": True}
    found = ask(client, n=2, extra_body=fields)
    assert len(found.choices) == 2
    assert found.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.5}, "top_p"),
        ({"temperature": 0.5}, "temperature"),
        ({"stop": ["a"]}, "stop"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"n": 0}, "n"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
    ],
)
def test_what_a_beam_search_does_not_read_is_refused(demo: Served, fields, param):
    body = {"model": "demo", "prompt": "a", "n": 2, "use_beam_search": True}
    answer = httpx.post(f"{demo.url}/v1/completions", json=body | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
