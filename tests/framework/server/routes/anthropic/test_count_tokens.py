"""The number of tokens is that of the prompt which the same conversation has."""

import pytest
from asgi_parts import post

from quire.config import ServerSettings
from quire.server.app import create_app

PATH = "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


def count(app, **fields):
    return post(app, f"{PATH}/count_tokens", **{"messages": HI} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be kind."},
        {"tools": [TOOL], "tool_choice": {"type": "auto"}},
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
        {"messages": [*HI, {"role": "assistant", "content": "I am"}]},
        {"thinking": {"type": "enabled", "budget_tokens": 5}, "model": "pirate"},
        {
            "cache_control": {"type": "ephemeral"},
            "speed": "fast",
            "output_config": {"effort": "low"},
        },
    ],
)
def test_a_count_is_the_usage_of_the_message(app, core, fields):
    wire = count(app, **fields)
    assert wire.status == 200
    assert wire.json() == {"input_tokens": wire.json()["input_tokens"]}
    assert core.requests == []
    body = {"messages": HI, "max_tokens": 3} | fields
    usage = post(app, PATH, **body).json()["usage"]
    assert usage["input_tokens"] == wire.json()["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "ghost"}, 404, "ghost"),
        ({"max_tokens": 3}, 400, "max_tokens"),
        ({"mcp_servers": ["x"]}, 400, "send their tools"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "'image'"),
        ({"tools": [TOOL, TOOL]}, 400, "twice"),
    ],
)
def test_a_fault_is_named(app, fields, status, said):
    wire = count(app, **fields)
    assert wire.status == status
    assert said in wire.error["message"]


def test_a_conversation_is_counted_that_the_model_cannot_take(app, tokenizer):
    """A client asks before it cuts a conversation that has become too long."""
    (few, many) = (count(app, messages=_words(num)).json()["input_tokens"] for num in (10, 20_000))
    assert many - few == len(tokenizer.encode(_text(20_000))) - len(tokenizer.encode(_text(10)))
    refused = post(app, PATH, messages=_words(20_000), max_tokens=1)
    assert refused.status == 400


def test_more_messages_than_the_model_takes_tokens_are_counted(app):
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    few, many = (count(app, messages=turns * num).json()["input_tokens"] for num in (1, 1001))
    assert (many - few) % 1000 == 0
    assert many > 2000


def _text(num):
    return " ".join(["word"] * num)


def _words(num):
    return [{"role": "user", "content": _text(num)}]
