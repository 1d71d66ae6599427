"""Tools of programs are JSON of a bounded size, and a conversation is prepared with them."""

import re
from types import MappingProxyType

import pytest
from chat_parsers import calling
from server_parts import SOURCE, BracketParser

from quire.errors import InvalidRequestError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.prepared_chat import PreparedChat, read_tools
from quire.sampling_params import BeamSearchParams

PARSERS = CompletionParsers(tools=calling(BracketParser, SOURCE))


def tool(**parameters):
    return {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object"} | parameters},
    }


cycle: dict = {}
cycle["a"] = cycle
wide: dict = {"type": "null"}
for _ in range(60):
    wide = {"anyOf": [wide, wide]}  # 2**60 schemas


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (tool(default=cycle), "tools is nested more than 128 deep"),
        (tool(properties={"a": wide}), "tools is too large"),
        (tool(const=b"a"), "the value at /0/function/parameters/const is a bytes"),
        (tool(minimum=float("nan")), "the number at /0/function/parameters/minimum is nan"),
        (tool(enum=["\ud800"]), "the text at /0/function/parameters/enum/0 of tools is not valid"),
        (tool() | {"type": cycle}, "tools is nested more than 128 deep"),
        ({"type": "custom", "custom": {"name": "f", "description": "a" * 2**21}}, "too large"),
    ],
)
@pytest.mark.parametrize("choice", [None, "required"])
def test_tools_that_are_no_json_or_too_large_are_refused(given, message, choice):
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        read_tools([given], choice, PARSERS)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("wrong", ["abc", 3, {"a": 1}, [3]])
def test_what_is_no_list_of_tools_is_refused(wrong):
    with pytest.raises(InvalidRequestError, match="tools"):
        read_tools(wrong, None, PARSERS)


def test_tools_are_mappings_in_any_sequence():
    assert read_tools((MappingProxyType(tool()),), None, PARSERS).tools == [tool()]
    assert read_tools(None, None, PARSERS).tools == []


@pytest.mark.parametrize("choice", [None, "required"])
@pytest.mark.parametrize("params", [{"temperature": 1}, BeamSearchParams(beam_width=2)])
def test_parameters_of_another_type_are_refused_by_their_type(choice, params):
    use = read_tools([tool()], choice, PARSERS)
    with pytest.raises(InvalidRequestError, match=f"got {type(params).__name__}") as caught:
        PreparedChat.of([], params, None, PARSERS, tools=use)
    assert caught.value.param == "sampling_params"
