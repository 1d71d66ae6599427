"""Wrong tools and choices are refused by all APIs, in the shape of each, before any work."""

import pytest
from asgi_parts import post

from quire.config import ServerSettings
from quire.server.app import create_app

HI = [{"role": "user", "content": "Hi"}]
F = {"name": "f", "parameters": {"type": "object"}}
TYPED = {"type": "array", "items": {"type": "text"}}
DEEP = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, TYPED]}}}


def with_schema(schema):
    return [F, {"name": "g", "parameters": schema}]


BROKEN_TOOLS = [  # functions, the tool that is wrong, its field, and words of the message
    (with_schema("object"), 1, "parameters", "`str`"),
    (with_schema([]), 1, "parameters", "`array`"),
    (with_schema({"type": "string"}), 1, "parameters", "type object"),
    (with_schema({"type": "dict"}), 1, "parameters", "'type' at /"),
    (with_schema({"type": "object", "required": "a"}), 1, "parameters", "'required' at /"),
    (with_schema({"type": "object", "properties": ["a"]}), 1, "parameters", "'properties' at /"),
    (with_schema({"type": "object", "properties": {"a": "int"}}), 1, "parameters", '"int" at'),
    (with_schema(DEEP), 1, "parameters", "/properties/a/anyOf/1/items"),
    ([F, F], None, "", "'f' is given twice"),
    ([{"name": "a b", "parameters": {}}], 0, "name", "'a b'"),
    ([{"name": "", "parameters": {}}], 0, "name", "''"),
    ([{"name": "é" * 3, "parameters": {}}], 0, "name", "letters"),
    ([{"name": "n" * 65, "parameters": {}}], 0, "name", "1 to 64"),
    ([{"name": 5, "parameters": {}}], 0, "name", "str"),
    ([{"name": f"f{i}", "parameters": {}} for i in range(129)], None, "", "at most 128"),
]


@pytest.fixture
def refused(frontend, core):
    """Post a request that must be refused with a 400; return its body."""
    app = create_app(frontend, ServerSettings(), list)

    def run(path, **fields):
        wire = post(app, path, **fields)
        assert wire.status == 400, wire.body
        assert core.requests == []
        return wire.json()

    return run


def nested(functions):
    return [{"type": "function", "function": function} for function in functions]


def path_of(at, field, inner=""):
    return "tools" if at is None else f"tools[{at}]{inner}.{field}"


@pytest.mark.parametrize(("functions", "at", "field", "words"), BROKEN_TOOLS)
def test_broken_tools_are_refused_in_the_shape_of_each_api(refused, functions, at, field, words):
    error = refused("/v1/chat/completions", messages=HI, tools=nested(functions))["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert error["param"].startswith(path_of(at, field, ".function").removesuffix(".name"))
    assert words in error["message"]

    flat = [{"type": "function", **function} for function in functions]
    error = refused("/v1/responses", input="Hi", tools=flat)["error"]
    assert error["param"].startswith(path_of(at, field).removesuffix(".name"))
    assert words in error["message"]

    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
    body = refused("/v1/messages", messages=HI, max_tokens=5, tools=tools)
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    schema = field.replace("parameters", "input_schema")
    assert path_of(at, schema).removesuffix(".name") in body["error"]["message"]

    error = refused("/api/chat", messages=HI, tools=nested(functions))["error"]
    assert words in error


def chat_choices(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("chat", "responses", "messages"),
    [
        (chat_choices("g"), {"type": "function", "name": "g"}, {"type": "tool", "name": "g"}),
        ("sometimes", "sometimes", {"type": "sometimes"}),
        ({"type": "web"}, {"type": "web"}, {"type": "web"}),
        (chat_choices(None), {"type": "function"}, {"type": "tool"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [chat_choices("g")]},
            },
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            {"type": "any", "name": "f"},
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "any", "tools": [chat_choices("f")]},
            },
            {"type": "allowed_tools", "mode": "any", "tools": [{"type": "function", "name": "f"}]},
            {"type": "tool", "name": ""},
        ),
    ],
)
def test_a_choice_of_no_tool_is_refused_in_the_shape_of_each_api(
    refused, chat, responses, messages
):
    fields = {"tools": nested([F]), "tool_choice": chat}
    assert refused("/v1/chat/completions", messages=HI, **fields)["error"]["param"].startswith(
        "tool_choice"
    )
    fields = {"tools": [{"type": "function", **F}], "tool_choice": responses}
    assert refused("/v1/responses", input="Hi", **fields)["error"]["param"].startswith(
        "tool_choice"
    )
    fields = {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": messages}
    body = refused("/v1/messages", messages=HI, max_tokens=5, **fields)
    assert "tool_choice" in body["error"]["message"]


def test_a_call_is_not_forced_where_there_are_no_tools(refused):
    for choice in ("required", chat_choices("f")):
        error = refused("/v1/chat/completions", messages=HI, tool_choice=choice)["error"]
        assert error["param"] == "tools"
    for choice in ("required", {"type": "function", "name": "f"}):
        assert refused("/v1/responses", input="Hi", tool_choice=choice)["error"]["param"] == "tools"
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        refused("/v1/messages", messages=HI, max_tokens=5, tool_choice=choice)
