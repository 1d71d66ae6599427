"""Forms over HTTP, with a whole engine: what cannot be kept is a 400 that names the right field."""

import json

import httpx
import pytest
from chat_parsers import calling
from openai import OpenAI
from server_parts import SOURCE, BracketParser, start_server, stop_servers

from quire import AsyncEngine
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.testing.checkpoints import write_checkpoint

MESSAGES = [{"role": "user", "content": "hi"}]
ODD = {"type": "object", "properties": {"age": {"type": "integer", "divisibleBy": 3}}}
SMALL = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder
    engine = AsyncEngine(str(folder), max_model_len=256, tool_call_parser="hermes")
    served = start_server(None, engine.frontend)
    yield f"{served.url}/v1"
    stop_servers([served])


def refused(url, path="chat/completions", **fields):
    body = {"messages": MESSAGES} if path.startswith("chat") else {"prompt": "hi"}
    response = httpx.post(f"{url}/{path}", json=body | fields, timeout=20)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "invalid_grammar"
    return error


def test_a_schema_that_cannot_be_kept_is_refused_where_it_was_asked_for(url):
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": ODD}}
    constraints = {"response_format": wrapped, "structured_outputs": {"json": ODD}}
    for path in ("chat/completions", "completions"):
        for field, value in constraints.items():
            for stream in (False, True):
                error = refused(url, path, **{field: value}, stream=stream)
                assert error["param"] == field
                assert "'divisibleBy' at /properties/age" in error["message"]


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        (
            {"structured_outputs": {"structural_tag": TAG, "backend": "outlines"}},
            "structured_outputs",
            "'structural_tag'",
        ),
        (
            {"structured_outputs": {"grammar": "root ::= x", "backend": "outlines"}},
            "structured_outputs",
            "'grammar'",
        ),
    ],
)
def test_a_constraint_that_the_backend_does_not_know_is_refused_by_name(url, fields, param, named):
    error = refused(url, **fields)
    assert error["param"] == param
    assert f"the outlines backend does not support the constraint {named}" in error["message"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_format_that_is_not_supported_is_refused_as_it_was_sent(url, choice):
    grammar = {"syntax": "regex", "definition": "a(?=b)"}
    form = {"type": "grammar", "grammar": grammar}
    run = {"type": "custom", "custom": {"name": "run", "format": form}}
    error = refused(url, tools=[tool("good", SMALL), run], tool_choice=choice)
    assert error["param"] == "tools[1].custom.format.grammar.definition"
    assert "'(?=' at character 1" in error["message"]
    assert "strict" not in error["message"]

    flat = {"type": "custom", "name": "run", "format": {"type": "grammar", **grammar}}
    body = {"input": "hi", "tools": [flat], "tool_choice": choice}
    response = httpx.post(f"{url}/responses", json=body, timeout=20)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools[0].format.definition")
    assert error["message"].startswith("tools[0].format.definition is not supported")


def test_a_tool_that_cannot_be_forced_is_refused_by_name(url):
    tools = [tool("good", SMALL), tool("bad", ODD)]
    error = refused(url, tools=tools, tool_choice="required")
    assert error["param"] == "tools"
    assert "tool 'bad'" in error["message"]
    assert "'divisibleBy' at /properties/age" in error["message"]


def strict(name, parameters):
    found = tool(name, parameters)
    found["function"]["strict"] = True
    return found


def test_a_strict_tool_whose_schema_cannot_be_followed_is_refused_by_name(url):
    error = refused(url, tools=[tool("good", ODD), strict("bad", ODD)])
    assert error["param"] == "tools"
    assert "tool 'bad'" in error["message"]
    assert "'divisibleBy' at /properties/age" in error["message"]


def test_strict_calls_and_another_constraint_are_that_constraint(url):
    body = {
        "messages": MESSAGES,
        "tools": [strict("a", SMALL)],
        "structured_outputs": {"choice": ["yes", "no"]},
    }
    response = httpx.post(f"{url}/chat/completions", json=body, timeout=20).json()
    assert response["choices"][0]["message"]["content"] in ("yes", "no")


@pytest.fixture(scope="module")
def bracket_url(tmp_path_factory):
    """A server whose model calls by `[[name {...}]]`, which one token begins."""
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder
    engine = AsyncEngine(str(folder), max_model_len=256)
    engine.frontend.completion_parsers = CompletionParsers(tools=calling(BracketParser, SOURCE))
    served = start_server(None, engine.frontend)
    yield f"{served.url}/v1"
    stop_servers([served])


def asked_calls(url, make, **fields):
    """Return the calls of a model that writes nothing but brackets where it may."""
    body = {"prompt": "[", "add_special_tokens": False}
    (bracket,) = httpx.post(f"{url.removesuffix('/v1')}/tokenize", json=body).json()["tokens"]
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        completion = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=MESSAGES,
            tools=[make("a", SMALL)],
            max_tokens=60,
            extra_body={"allowed_token_ids": [bracket]},
            **fields,
        )
    return completion.choices[0]


def test_optional_calls_of_a_strict_tool_follow_its_schema(bracket_url):
    loose = asked_calls(bracket_url, tool)
    assert set(loose.message.content) == {"["}
    assert loose.message.tool_calls is None
    choice = asked_calls(bracket_url, strict)
    assert (choice.finish_reason, len(choice.message.tool_calls) > 1) == ("length", True)
    for call in choice.message.tool_calls[:-1]:  # max_tokens may cut the last one
        assert call.function.name == "a"
        assert json.loads(call.function.arguments)["a"] in (1, 2)


def test_a_completion_ends_with_the_only_call_that_it_may_have(bracket_url):
    choice = asked_calls(bracket_url, strict, parallel_tool_calls=False)
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments)["a"] in (1, 2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "b"}}])
def test_a_forced_call_has_the_tools_arguments(url, choice):
    body = {
        "messages": MESSAGES,
        "tools": [tool("a", SMALL), tool("b", SMALL)],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 150,
        "temperature": 0,
    }
    response = httpx.post(f"{url}/chat/completions", json=body, timeout=20).json()
    (found,) = response["choices"]
    assert found["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] in {"required": ("a", "b")}.get(str(choice), ("b",))
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
    assert not found["message"]["content"]
