"""Tools of Anthropic's API are functions of a chat, or are refused by name."""

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.bodies import ToolChoice
from quire.server.routes.anthropic.tools import chat_tool, chat_tool_choice, custom_tools

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}


def tools(*given, unknown=None):
    return [chat_tool(tool) for tool in custom_tools(given, unknown or UnknownFields())]


def test_a_tool_is_a_function():
    function = {"name": "f", "parameters": TOOL["input_schema"]}
    assert tools(TOOL) == [{"type": "function", "function": function}]
    full = TOOL | {"type": "custom", "description": "It does.", "strict": True}
    assert tools(full)[0]["function"] == function | {"description": "It does.", "strict": True}


def test_an_input_is_an_object_without_saying_so():
    (found,) = tools({"name": "f", "input_schema": {}})
    assert found["function"]["parameters"] == {"type": "object"}


def test_what_has_no_effect_is_accepted():
    more = {
        "cache_control": {"type": "ephemeral"}, "defer_loading": True, "description": None,
        "input_examples": [{"a": "x"}], "allowed_callers": ["direct"],
        "eager_input_streaming": True,
    }  # fmt: skip
    assert tools(TOOL | more) == tools(TOOL)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "tools[0].type"),
        ({"type": "bash_20250124", "name": "bash"}, "tools[0].type"),
        ({"name": "f"}, "tools[0]"),
        ({"input_schema": {}}, "tools[0]"),
        (TOOL | {"input_schema": "{}"}, "tools[0].input_schema"),
        (TOOL | {"strict": "yes"}, "tools[0].strict"),
        (TOOL | {"allowed_callers": ["code_execution_20250825"]}, "tools[0].allowed_callers"),
    ],
)
def test_a_tool_that_the_client_cannot_run_or_that_is_incomplete_is_refused(tool, param):
    with pytest.raises(InvalidRequestError) as caught:
        tools(tool)
    assert caught.value.param == param
    assert param in str(caught.value)


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(UnknownFieldError, match="did you mean 'input_schema'"):
        tools(TOOL | {"input_schemas": {}})
    assert tools(TOOL | {"input_schemas": {}}, unknown=UnknownFields(is_lenient=True))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("auto"), "auto"),
        (ToolChoice("any"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("tool", "f"), {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_choice_is_that_of_a_chat(choice, expected):
    assert chat_tool_choice(choice) == expected


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (ToolChoice("required"), "tool_choice.type"),
        (ToolChoice("tool"), "tool_choice.name"),
        (ToolChoice("any", "f"), "tool_choice.name"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(choice, param):
    with pytest.raises(InvalidRequestError) as caught:
        chat_tool_choice(choice)
    assert caught.value.param == param
