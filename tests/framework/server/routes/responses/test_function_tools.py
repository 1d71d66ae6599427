"""Tools and their choice in the shape of a chat."""

import json

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.function_tools import chat_choice, chat_tools

STRICT = UnknownFields()
TOOL = {"type": "function", "name": "f", "description": None, "parameters": {}, "strict": True}


def test_a_function_is_nested_without_nulls():
    assert chat_tools([TOOL], STRICT) == [
        {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    ]
    assert chat_tools(None, STRICT) is None


def test_fields_for_programs_are_accepted_if_they_ask_for_nothing():
    neutral = {"async": False, "allowed_callers": ["direct"], "defer_loading": False}
    assert chat_tools([TOOL | neutral], STRICT) == chat_tools([TOOL], STRICT)
    for name, value in (("async", True), ("defer_loading", True), ("output_schema", {"a": 1})):
        with pytest.raises(InvalidRequestError, match="leave it out") as failed:
            chat_tools([TOOL, TOOL | {name: value}], STRICT)
        assert failed.value.param == f"tools[1].{name}"


@pytest.mark.parametrize("kind", ["web_search", "code_interpreter", None, 3])
def test_other_tools_are_refused_by_name(kind):
    with pytest.raises(InvalidRequestError, match="offer one of yours") as failed:
        chat_tools([{"type": kind}], STRICT)
    assert failed.value.param == "tools[0].type"
    assert json.dumps(kind) in str(failed.value)


def test_a_function_in_the_shape_of_a_chat_is_refused():
    with pytest.raises(UnknownFieldError) as failed:
        chat_tools([{"type": "function", "function": {"name": "f"}}], STRICT)
    assert failed.value.param == "tools[0].function"


def test_a_custom_tool_is_nested_with_its_format():
    tool = {"type": "custom", "name": "run", "description": "Runs it"}
    grammar = {"syntax": "regex", "definition": "a|b"}
    text, form = {"type": "text"}, {"type": "grammar", **grammar}
    assert chat_tools([tool, tool | {"format": text}, tool | {"format": form}], STRICT) == [
        {"type": "custom", "custom": {"name": "run", "description": "Runs it"} | more}
        for more in ({}, {"format": text}, {"format": {"type": "grammar", "grammar": grammar}})
    ]
    choice = {"type": "custom", "name": "run"}
    assert chat_choice(choice, STRICT) == {"type": "custom", "custom": {"name": "run"}}
    with pytest.raises(UnknownFieldError) as failed:
        chat_tools([tool | {"format": form | {"odd": 1}}], STRICT)
    assert failed.value.param == "tools[0].format.odd"
    with pytest.raises(UnknownFieldError) as failed:
        chat_tools([tool | {"parameters": {}}], STRICT)
    assert failed.value.param == "tools[0].parameters"


@pytest.mark.parametrize("choice", [None, "none", "auto", "required"])
def test_a_mode_stays(choice):
    assert chat_choice(choice, STRICT) == choice


def test_a_choice_of_functions_is_nested():
    named = {"type": "function", "function": {"name": "f"}}
    flat = {"type": "function", "name": "f"}
    assert chat_choice(flat, STRICT) == named
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [flat]}
    assert chat_choice(allowed, STRICT) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [named]},
    }


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("any", "tool_choice"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice"),
        ({"type": "web_search_preview"}, "tool_choice"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "function", "name": 3}, "tool_choice"),
        ({"type": "function", "name": "f", "mode": "x"}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [3]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "tools": [], "names": []}, "tool_choice.names"),
    ],
)
def test_a_wrong_choice_is_named(choice, param):
    with pytest.raises(InvalidRequestError) as failed:
        chat_choice(choice, STRICT)
    assert failed.value.param == param
