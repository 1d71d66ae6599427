"""Custom tools are functions of one text, and a regular expression limits that text."""

import pytest
from chat_parsers import calling
from server_parts import SOURCE, BracketParser

from quire.errors import InvalidRequestError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.tools.tool_choice import tool_use

BRACKETS = CompletionParsers(tools=calling(BracketParser, SOURCE))
A = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}


def named(name):
    return {"type": "function", "function": {"name": name}}


def custom(name, **fields):
    return {"type": "custom", "custom": {"name": name} | fields}


def use(tools, tool_choice=None, parsers=BRACKETS):
    return tool_use(tools, tool_choice, parsers)


def forced(found):
    return [shape.tool for shape in found.constraint.calls.shapes], found.constraint.calls.separator


def regex(definition):
    grammar = {"syntax": "regex", "definition": definition}
    return {"type": "grammar", "grammar": grammar}


@pytest.mark.parametrize("form", [{}, {"format": None}, {"format": {"type": "text"}}])
def test_a_custom_tool_is_a_function_of_one_text(form):
    found = use([A, custom("run", description="Runs it", **form)])
    assert (found.tools[0], found.custom) == (A, {"run"})
    function = found.tools[1]["function"]
    assert (function["name"], function["description"]) == ("run", "Runs it")
    assert function["parameters"]["properties"]["input"]["type"] == "string"
    assert function["parameters"]["required"] == ["input"]
    assert found.strict_calls is None


def test_a_regex_of_a_custom_tool_is_enforced_where_calls_are_optional():
    found = use([A, custom("run", format=regex("a|b"))])
    shape = found.strict_calls.calls.shapes[1]
    assert shape.pieces[1].schema["properties"]["input"]["pattern"] == "^(?:a|b)$"
    forced_one = use([custom("run", format=regex("a|b"))], tool_choice="required")
    (shape,) = forced_one.constraint.calls.shapes
    assert shape.pieces[1].schema["properties"]["input"]["pattern"] == "^(?:a|b)$"


@pytest.mark.parametrize(
    ("definition", "pattern"),
    [
        ("^a|b$", "^(?:a|b)$"),
        ("^a", "^(?:a)$"),
        (r"a\$", r"^(?:a\$)$"),
        (r"a\\$", r"^(?:a\\)$"),
        (r"^\\\$", r"^(?:\\\$)$"),
        ("$", "^(?:)$"),
        (r"(?P<day>\d{1,2})(?:st|nd)?", r"^(?:(?:\d{1,2})(?:st|nd)?)$"),
        (r"\\(?P<a>x)[(?P<b>\]]", r"^(?:\\(?:x)[(?P<b>\]])$"),
        (r"\(?P<a>", r"^(?:\(?P<a>)$"),
        ("", "^(?:)$"),
    ],
)
def test_a_regex_of_a_custom_tool_is_that_of_the_whole_input(definition, pattern):
    (tool,) = use([custom("run", format=regex(definition))]).tools
    assert tool["function"]["parameters"]["properties"]["input"]["pattern"] == pattern


def test_a_custom_tool_is_chosen_by_its_type():
    tools = [A, custom("run")]
    choice = {"type": "custom", "custom": {"name": "run"}}
    found = use(tools, tool_choice=choice)
    assert (found.is_named, forced(found)[0], found.custom) == (True, ["run"], {"run"})
    allowed = {"mode": "required", "tools": [choice, named("a")]}
    found = use(tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert forced(found)[0] == ["a", "run"]
    assert use(tools, tool_choice="none").tools == []


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json"}, ".type"),
        ({}, ".type"),
        ({"type": "text", "grammar": {}}, ".grammar"),
        ({"type": "grammar"}, ".grammar"),
        ({"type": "grammar", "grammar": {"syntax": "regex"}}, ".grammar"),
        ({"type": "grammar", "grammar": {"syntax": "bnf", "definition": "a"}}, ".grammar.syntax"),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": "a"}}, ".grammar.syntax"),
        (regex("a") | {"odd": 1}, ".odd"),
    ],
)
def test_the_format_of_a_custom_tool_is_checked(form, param):
    with pytest.raises(InvalidRequestError) as caught:
        use([custom("run", format=form)])
    assert caught.value.param == f"tools[0].custom.format{param}"


def test_a_parser_that_cannot_enforce_a_format_says_so():
    class Lax(BracketParser):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return None

    parsers = CompletionParsers(tools=calling(Lax, SOURCE))
    with pytest.raises(InvalidRequestError, match="leave format out") as caught:
        use([custom("run", format=regex("a"))], parsers=parsers)
    assert caught.value.param == "tools[0].custom.format"


@pytest.mark.parametrize("choice", [None, "none", "required", named("a")])
@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ("(", r"has a '\(' that is not closed: '\('"),
        ("a)(b", r"has a '\)' that nothing opens: 'a\)\(b'"),
        ("[a", "has a '\\[' that is not closed"),
        ("a\\", "ends with a backslash"),
    ],
)
def test_a_broken_regex_is_refused_as_it_was_sent_whatever_is_chosen(choice, definition, fault):
    with pytest.raises(InvalidRequestError, match=f"grammar.definition {fault}") as caught:
        use([A, custom("run", format=regex(definition))], tool_choice=choice)
    assert caught.value.param == "tools[1].custom.format.grammar.definition"


def test_the_regexes_of_tools_that_may_be_called_are_known_by_their_paths():
    tools = [A, custom("run", format=regex("a$")), custom("text", format={"type": "text"})]
    tools.append(custom("see", format=regex("b")))
    run, see = (f"tools[{i}].custom.format.grammar.definition" for i in (1, 3))
    assert use(tools).formats == {run: "a$", see: "b"}
    choice = {"type": "custom", "custom": {"name": "see"}}
    assert use(tools, tool_choice=choice).formats == {see: "b"}
    assert use(tools, tool_choice="none").formats == {}
