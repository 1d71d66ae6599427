"""Tools are functions of different names with schemas, or refused with the path of the field."""

from types import MappingProxyType

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.chat.tools.checked_tools import MAX_TOOLS, checked_tools


def tool(name, **fields):
    function = {"name": name, "parameters": {"type": "object"}} | fields
    return {"type": "function", "function": function}


def custom(name, **fields):
    return {"type": "custom", "custom": {"name": name} | fields}


A, B = tool("a"), tool("b")


@pytest.mark.parametrize("tools", [None, [], ()])
def test_there_may_be_no_tools(tools):
    assert checked_tools(tools) == []


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([A, custom("a")], "tools"),
        ([custom("a b")], "tools[0].custom.name"),
        ([A, {"type": "web_search"}], "tools[1].type"),
        ([A, B, A], "tools"),
        ([A, {"function": {"name": "b"}}], "tools[1].type"),
        ([{"type": "custom"}], "tools[0]"),
        ([A, {"type": "function"}], "tools[1]"),
        ([{"type": "function", "function": {}}], "tools[0].function"),
        ([tool("")], "tools[0].function.name"),
        ([tool("a" * 65)], "tools[0].function.name"),
        ([tool("a b")], "tools[0].function.name"),
        ([tool("a\n")], "tools[0].function.name"),
        ([tool("é")], "tools[0].function.name"),
        (5, "tools"),
        ("a", "tools"),
        (A, "tools"),
        ([A, 5], "tools[1]"),
        ([A, [B]], "tools[1]"),
        ([A, None], "tools[1]"),
        ([A, tool(5)], "tools[1].function.name"),
        ([tool("a", parameters=[])], "tools[0].function.parameters"),
        ([tool("a", parameters={"properties": 5})], "tools[0].function.parameters"),
    ],
)
def test_a_wrong_tool_is_named_by_its_place(tools, param):
    with pytest.raises(InvalidRequestError) as caught:
        checked_tools(tools)
    assert caught.value.param == param


def test_a_message_shows_json():
    with pytest.raises(InvalidRequestError, match=r"or 'custom', got null$"):
        checked_tools([{"function": {"name": "b"}}])
    with pytest.raises(InvalidRequestError, match=r'got {"a": true}$'):
        checked_tools([{"type": {"a": True}}])


def test_a_misspelt_field_is_not_ignored():
    with pytest.raises(UnknownFieldError, match="did you mean 'parameters'") as caught:
        checked_tools([tool("a", paramters={})])
    assert caught.value.param == "tools[0].function.paramters"


def test_a_program_may_give_other_sequences_and_mappings():
    assert checked_tools((MappingProxyType(A), B)) == [A, B]


def test_a_function_says_what_it_returns_as_transformers_has_it():
    returning = tool("a")
    returning["function"] |= {"return": {"type": "string"}, "strict": False}
    assert checked_tools([returning]) == [returning]


@pytest.mark.parametrize("name", ["a", "a" * 64, "a.b-c_9", "-"])
def test_names_of_these_letters_are_taken(name):
    assert checked_tools([tool(name)]) == [tool(name)]


def test_so_many_tools_are_taken_and_no_more():
    tools = [tool(f"t{i}") for i in range(MAX_TOOLS + 1)]
    assert len(checked_tools(tools[:MAX_TOOLS])) == 128
    with pytest.raises(InvalidRequestError, match="at most 128") as caught:
        checked_tools(tools)
    assert caught.value.param == "tools"
