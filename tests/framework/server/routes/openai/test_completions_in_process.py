"""Completions through the application in this process: limits, echoes, and what the engine gets."""

import asyncio
import threading

import pytest
from asgi_parts import post
from scripted_core import ScriptedCore
from server_parts import MAX_MODEL_LEN, Texts, make_frontend

from quire.config import ServerSettings
from quire.errors import InvalidRequestError
from quire.frontend.text.tokenizer import Tokenizer
from quire.server import app as app_module
from quire.server.app import create_app
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.openai.completions import split_prompts
from quire.server.wire.bodies import LARGE_BYTES

PATH = "/v1/completions"


@pytest.fixture
def ask(frontend):
    app = create_app(frontend, ServerSettings(), list)

    def run(prompt="Once", **fields):
        return post(app, PATH, prompt=prompt, **fields)

    return run


def test_so_many_prompts_and_completions_are_accepted(ask, core):
    choices = ask(["a"] * 256, n=4, max_tokens=1).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(1024))
    assert len(core.requests) == 1024


@pytest.mark.parametrize(("num_prompts", "n"), [(257, 1), (256, 5), (205, 5), (9, 128), (1025, 1)])
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_more_prompts_or_completions_are_refused(ask, core, num_prompts, n, kind):
    wire = ask(["a" if kind == "text" else [300]] * num_prompts, n=n)
    assert (wire.status, wire.error["param"]) == (400, "prompt")
    assert f"got {num_prompts} prompts of {n} completions" in wire.error["message"]
    assert core.requests == []


def test_a_prompt_of_ids_is_one_prompt_up_to_the_models_length(ask, core):
    wire = ask([300] * (MAX_MODEL_LEN - 1), n=2)
    assert len(wire.json()["choices"]) == 2
    assert core.requests[0].token_ids == [300] * 511
    for prompt in ([300] * MAX_MODEL_LEN, [[300], [300] * MAX_MODEL_LEN]):
        wire = ask(prompt)
        assert (wire.status, wire.error["code"]) == (400, "context_length_exceeded")
        assert wire.error["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "split"),
    [
        ("", [""]),
        ("a", ["a"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
    ],
)
def test_a_prompt_is_a_text_texts_ids_or_lists_of_ids(prompt, split):
    assert split_prompts(prompt) == split


@pytest.mark.parametrize(
    "prompt", [[], ["a", 1], [1, "a"], [1, True], [[1], "a"], [[1], [True]], [[1], 2], [1.0], [{}]]
)
def test_any_other_prompt_is_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        split_prompts(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("logprobs", "prompt_logprobs", "num"),
    [(1, None, 1), (1, 3, 3), (3, 1, 3), (0, None, 0), (2, 0, 2)],
)
def test_an_echo_computes_what_the_wider_of_two_fields_shows(
    ask, core, logprobs, prompt_logprobs, num
):
    fields = {} if prompt_logprobs is None else {"prompt_logprobs": prompt_logprobs}
    (choice,) = ask("one two three", echo=True, logprobs=logprobs, **fields).json()["choices"]
    assert core.requests[0].params.prompt_logprobs == num
    assert ("prompt_logprobs" in choice) is (prompt_logprobs is not None)
    num_shown = [len(top) for top in choice["logprobs"]["top_logprobs"][1:]]
    assert set(num_shown) == {max(1, logprobs)}  # the chosen one is the most likely here


@pytest.mark.parametrize(
    ("fields", "num"),
    [
        ({}, None),
        ({"logprobs": 2}, None),
        ({"echo": True}, None),
        ({"prompt_logprobs": 0}, 0),
        ({"echo": True, "prompt_logprobs": 2}, 2),
        ({"logprobs": 5, "prompt_logprobs": 2}, 2),
    ],
)
def test_the_prompts_log_probabilities_are_computed_if_asked_for(ask, core, fields, num):
    assert ask(**fields).status == 200
    assert core.requests[0].params.prompt_logprobs == num


@pytest.mark.parametrize(
    ("fields", "max_tokens", "text"),
    [
        ({}, 16, "I am a script."),
        ({"echo": True}, 16, "OnceI am a script."),
        ({"echo": True, "max_tokens": 0}, 1, "Once"),
        ({"echo": True, "max_tokens": 2}, 2, "OnceI"),
        ({"echo": False, "max_tokens": 20}, 20, "I am a script."),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_is_sixteen_unless_it_is_given(ask, core, fields, max_tokens, text, stream):
    wire = ask(stream=stream, **fields)
    events = wire.events if stream else [wire.json()]
    choices = [choice for event in events for choice in event["choices"]]
    assert core.requests[0].max_tokens == max_tokens
    assert "".join(choice["text"] for choice in choices).startswith(text)
    ends = [choice["finish_reason"] for choice in choices]
    assert ends == [None] * (len(ends) - 1) + ["length" if max_tokens < 10 else "stop"]


def test_no_tokens_without_an_echo_are_refused(ask):
    assert ask(max_tokens=0).error["param"] == "max_tokens"


def test_usage_is_sent_as_asked(ask):
    assert not [event for event in ask(stream=True).events if "usage" in event]
    for wants in (True, False):
        events = ask(stream=True, stream_options={"include_usage": wants}).events
        assert [bool(event.get("usage")) for event in events] == [
            *[False] * (len(events) - 1), wants,
        ]  # fmt: skip
        assert events[-1]["choices"] == [] or not wants
    assert events[0]["object"] == ask().json()["object"] == "text_completion"


def test_the_stop_string_is_named(ask):
    (choice,) = ask(stop=["script"]).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("I am a ", "script")
    assert ask(stop="script", stream=True).events[-1]["choices"][0]["stop_reason"] == "script"


def test_a_text_begins_with_the_models_begin_of_text(tokenizer):
    special = tokenizer.special_tokens | {"bos_token": "<|im_start|>"}
    bos = Tokenizer(tokenizer.backend, special_tokens=special, add_bos_token=True)
    core = ScriptedCore(Texts(bos))
    frontend = make_frontend(bos, core)
    app = create_app(frontend, ServerSettings(), list)
    for prompt, has_bos in (("a", True), ([300], False)):
        post(app, PATH, prompt=prompt)
        first = core.requests[-1].token_ids[0]
        assert (first == bos.backend.token_to_id("<|im_start|>")) is has_bos
    asyncio.run(frontend.shutdown())


@pytest.mark.parametrize("length", [10, LARGE_BYTES])
def test_a_large_bodys_prompts_are_looked_at_beside_the_event_loop(tokenizer, length):
    threads = []

    class Adapters(dict):
        def __contains__(self, name):
            threads.append(threading.current_thread().name)
            return super().__contains__(name)

    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)))
    frontend.adapters = Adapters(frontend.adapters)
    app = create_app(frontend, ServerSettings(), list)
    post(app, PATH, prompt="x" * length, model="pirate")
    asyncio.run(frontend.shutdown())
    assert (threads[0] != threading.current_thread().name) is (length >= LARGE_BYTES)


@pytest.mark.parametrize("stream", [False, True])
def test_every_end_releases_what_a_response_held(frontend, monkeypatch, stream):
    budget = LogprobBudget(100)
    monkeypatch.setattr(app_module.LogprobBudget, "share", lambda num: budget)
    app = create_app(frontend, ServerSettings(), list)
    for fields in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}):
        assert post(app, PATH, prompt="one two", stream=stream, **fields).status == 200
        assert budget.num_free == 100
    with_too_long = {"prompt": ["one two", "x " * 999], "prompt_logprobs": 0}
    assert post(app, PATH, stream=stream, **with_too_long).status == 400
    assert budget.num_free == 100


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_of_several_completions_has_no_log_probabilities(ask, stream):
    wire = ask(echo=True, logprobs=1, n=2, stream=stream)
    assert (wire.status, wire.error["param"]) == (400, "echo")
    assert ask(echo=True, logprobs=1, n=1, stream=stream).status == 200
    assert ask(echo=True, n=2, stream=stream).status == 200


@pytest.mark.parametrize(("side", "kept"), [("left", [302, 303]), ("right", [300, 301])])
def test_a_prompt_is_truncated_before_the_engine_gets_it(ask, core, side, kept):
    prompt = [300, 301, 302, 303]
    wire = ask(prompt, truncate_prompt_tokens=2, truncation_side=side)
    assert wire.json()["usage"]["prompt_tokens"] == 2
    assert [list(request.token_ids) for request in core.requests] == [kept]


def test_a_prompt_longer_than_the_model_is_truncated_on_request(ask, core):
    prompt = list(range(300, 300 + MAX_MODEL_LEN))
    assert ask(prompt).status == 400
    assert ask(prompt, truncate_prompt_tokens=-1).status == 200
    assert [list(request.token_ids) for request in core.requests] == [prompt[1:]]


def test_an_echo_shows_the_prompt_as_it_was_truncated(ask):
    whole = ask("Once upon a time", max_tokens=1).json()["choices"][0]["text"]
    echoed = ask("Once upon a time", max_tokens=1, echo=True, truncate_prompt_tokens=1).json()
    assert not echoed["choices"][0]["text"].startswith("Once upon")
    assert echoed["choices"][0]["text"].endswith(whole)


@pytest.mark.parametrize("limit", [0, -2, 2**31, 2**63, True, 1.5, "1"])
def test_an_odd_number_of_tokens_to_keep_is_a_400(ask, core, limit):
    wire = ask(truncate_prompt_tokens=limit)
    assert (wire.status, wire.error["param"]) == (400, "truncate_prompt_tokens")
    assert core.requests == []
