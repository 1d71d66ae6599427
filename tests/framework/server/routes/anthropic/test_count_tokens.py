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
        ({"messages": [*HI, {"role": "user", "content": "x" * 2**20}]}, 400, "messages"),
    ],
)
def test_a_fault_is_named(app, fields, status, said):
    wire = count(app, **fields)
    assert wire.status == status
    assert said in wire.error["message"]
