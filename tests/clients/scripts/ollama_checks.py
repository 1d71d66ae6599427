"""Ollama's client."""

import json

import ollama
from checks import MESSAGES, MODEL, SCHEMA, TOOL, check, check_place, raises, run

OPTIONS = {"temperature": 0, "num_predict": 24}


def client(url):
    return ollama.Client(host=url, timeout=60)


@check
def chats_whole_and_streamed_are_equal(url):
    whole = client(url).chat(MODEL, MESSAGES, options=OPTIONS)
    assert whole.message.role == "assistant"
    assert whole.message.content
    assert whole.done
    parts = list(client(url).chat(MODEL, MESSAGES, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert last.done_reason == whole.done_reason
    assert last.prompt_eval_count == whole.prompt_eval_count
    assert last.eval_count == whole.eval_count


@check
def completions_whole_and_streamed_are_equal(url):
    whole = client(url).generate(MODEL, "One, two,", options=OPTIONS)
    parts = list(client(url).generate(MODEL, "One, two,", options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].eval_count == whole.eval_count


@check
def done_reasons(url):
    short = client(url).chat(MODEL, MESSAGES, options=OPTIONS | {"num_predict": 1})
    assert short.done_reason == "length"
    stopped = client(url).chat(MODEL, MESSAGES, options=OPTIONS | {"stop": ["e", "a", "i", "o"]})
    assert stopped.done_reason == "stop"


@check
def structured_output(url):
    made = client(url).chat(MODEL, MESSAGES, format=SCHEMA, options=OPTIONS | {"num_predict": 200})
    check_place(made.message.content)
    loose = client(url).chat(MODEL, MESSAGES, format="json", options=OPTIONS | {"num_predict": 200})
    if loose.done_reason == "stop":
        assert isinstance(json.loads(loose.message.content), dict)


@check
def tools_are_taken(url):
    made = client(url).chat(MODEL, MESSAGES, tools=[TOOL], options=OPTIONS)
    for call in made.message.tool_calls or []:
        assert isinstance(call.function.arguments, dict)


@check
def models_are_listed(url):
    assert MODEL in [each.model.removesuffix(":latest") for each in client(url).list().models]


@check
def errors_have_their_types(url):
    with raises(ollama.ResponseError) as raised:
        client(url).chat("nothing", MESSAGES)
    assert raised[0].status_code == 404
    with raises(ollama.ResponseError) as raised:
        client(url).chat(MODEL, MESSAGES, options={"temperature": -1})
    assert raised[0].status_code == 400


run("ollama", "/api/chat")
