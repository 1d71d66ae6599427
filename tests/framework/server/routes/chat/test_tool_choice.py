"""Tools are functions of different names, and a choice among them is kept or refused."""

import asyncio

import pytest
from chat_parsers import calling
from scripted_core import ScriptedCore
from server_parts import SOURCE, BracketParser, Texts, make_frontend

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.unknown_fields import UnknownFields
from quire.plugins.registry import FILE, Source
from quire.server.routes.chat.tool_choice import MAX_TOOLS, ToolUse, tool_use
from quire.server.wire.protocol import ChatBody


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def named(name):
    return {"type": "function", "function": {"name": name}}


A, B = tool("a"), tool("b")
STRICT = UnknownFields()


def custom(name, **fields):
    return {"type": "custom", "custom": {"name": name} | fields}


@pytest.fixture
def use(frontend):
    def read(tools, unknown=STRICT, **fields):
        return tool_use(ChatBody(messages=[], tools=tools, **fields), frontend, unknown)

    return read


def forced(found):
    return [shape.tool for shape in found.constraint.calls.shapes], found.constraint.calls.separator


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}])
def test_the_model_may_call_what_there_is(use, fields):
    assert use([A, B], **fields) == ToolUse([A, B], None, True)


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_without_tools_nothing_is_called(use, tools, fields):
    assert use(tools, **fields) == ToolUse([])


def test_tools_that_must_not_be_called_are_not_shown(use):
    assert use([A, B], tool_choice="none") == ToolUse([])


def test_calls_one_after_another_are_kept_or_not(use):
    assert use([A], parallel_tool_calls=False) == ToolUse([A], None, False)
    assert use([A], parallel_tool_calls=None).allows_parallel


@pytest.mark.parametrize(("parallel", "separator"), [(True, ""), (None, ""), (False, None)])
def test_a_call_that_is_required_is_of_any_tool(use, parallel, separator):
    found = use([A, B], tool_choice="required", parallel_tool_calls=parallel)
    assert (found.tools, found.allows_parallel) == ([A, B], parallel is not False)
    assert forced(found) == (["a", "b"], separator)


def test_a_call_of_one_tool_is_of_it_alone_and_once(use):
    found = use([A, B], tool_choice=named("b"))
    assert (found.tools, found.allows_parallel) == ([B], False)
    assert forced(found) == (["b"], None)


@pytest.mark.parametrize(
    ("tools", "fields", "param"),
    [
        (None, {"tool_choice": "required"}, "tools"),
        ([], {"tool_choice": named("a")}, "tools"),
        ([A], {"tool_choice": named("b")}, "tool_choice"),
        ([A], {"tool_choice": "sometimes"}, "tool_choice"),
        ([A], {"tool_choice": {"type": "custom", "function": {"name": "a"}}}, "tool_choice"),
        ([A], {"tool_choice": {"type": "custom", "custom": {"name": "a"}}}, "tool_choice"),
        ([custom("a")], {"tool_choice": named("a")}, "tool_choice"),
        ([A, custom("a")], {}, "tools"),
        ([custom("a b")], {}, "tools[0].custom.name"),
        ([A, {"type": "web_search"}], {}, "tools[1].type"),
        ([A], {"tool_choice": {"type": "function", "function": "a"}}, "tool_choice"),
        ([A], {"tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice"),
        ([A, B, A], {}, "tools"),
        ([A, A], {"tool_choice": "none"}, "tools"),
        ([A, {"function": {"name": "b"}}], {}, "tools[1].type"),
        ([{"type": "custom"}], {}, "tools[0]"),
        ([A, {"type": "function"}], {}, "tools[1]"),
        ([{"type": "function", "function": {}}], {}, "tools[0].function"),
        ([tool("")], {}, "tools[0].function.name"),
        ([tool("a" * 65)], {}, "tools[0].function.name"),
        ([tool("a b")], {}, "tools[0].function.name"),
        ([tool("a\n")], {}, "tools[0].function.name"),
        ([tool("é")], {}, "tools[0].function.name"),
    ],
)
def test_what_cannot_be_chosen_is_named(use, tools, fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        use(tools, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("tools", "choice", "param", "meant"),
    [
        ([A, B | {"functions": 1}], "auto", "tools[1].functions", "function"),
        (
            [{"type": "function", "function": {"name": "a", "parameter": {}}}],
            "auto",
            "tools[0].function.parameter",
            "parameters",
        ),
        ([A], named("a") | {"types": 1}, "tool_choice.types", "type"),
        (
            [A],
            {"type": "function", "function": {"name": "a", "names": 1}},
            "tool_choice.function.names",
            "name",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_refused_or_left_out(use, tools, choice, param, meant):
    with pytest.raises(UnknownFieldError, match=f"did you mean '{meant}'") as caught:
        use(tools, tool_choice=choice)
    assert caught.value.param == param
    if choice == "auto":
        with pytest.raises(UnknownFieldError):
            use(tools, tool_choice="none")
    lenient = UnknownFields(is_lenient=True)
    assert use(tools, lenient, tool_choice=choice).tools == tools


def test_a_function_says_what_it_returns_as_transformers_has_it(use):
    returning = tool("a")
    returning["function"] |= {"return": {"type": "string"}, "strict": False}
    assert use([returning]).tools == [returning]


@pytest.mark.parametrize("name", ["a", "a" * 64, "a.b-c_9", "-"])
def test_names_of_these_letters_are_taken(use, name):
    assert use([tool(name)]).tools == [tool(name)]


def test_so_many_tools_are_taken_and_no_more(use):
    tools = [tool(f"t{i}") for i in range(MAX_TOOLS + 1)]
    assert len(use(tools[:MAX_TOOLS]).tools) == 128
    with pytest.raises(InvalidRequestError, match="at most 128") as caught:
        use(tools)
    assert caught.value.param == "tools"


def allowing(*names, mode="auto", **fields):
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools} | fields}


def test_some_of_the_tools_are_allowed(use):
    assert use([A, B], tool_choice=allowing("b")) == ToolUse([B])
    assert use([A, B], tool_choice=allowing("b", "a")) == ToolUse([A, B])
    found = use([A, B], tool_choice=allowing("b", mode="required"))
    assert (found.tools, forced(found)) == ([B], (["b"], ""))


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowing("c"), "tool_choice.allowed_tools.tools"),
        (allowing(), "tool_choice.allowed_tools.tools"),
        (allowing("a", mode="none"), "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (allowing("a", modes=1), "tool_choice.allowed_tools.modes"),
        (allowing("a") | {"odd": 1}, "tool_choice.odd"),
        (allowing("a", tools=[{"type": "custom"}]), "tool_choice.allowed_tools.tools[0]"),
        (
            allowing("a", tools=[named("a") | {"odd": 1}]),
            "tool_choice.allowed_tools.tools[0].odd",
        ),
    ],
)
def test_a_choice_among_tools_is_complete_and_of_the_tools(use, choice, param):
    with pytest.raises(InvalidRequestError) as caught:
        use([A, B], tool_choice=choice)
    assert caught.value.param == param


def strict(name, **parameters):
    function = {"name": name, "strict": True, "parameters": {"type": "object"} | parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(("parallel", "separator"), [(True, ""), (None, ""), (False, None)])
def test_calls_of_a_strict_tool_are_constrained_where_calls_are_optional(use, parallel, separator):
    found = use([A, strict("s", required=["x"])], parallel_tool_calls=parallel)
    assert found.constraint is None
    calls = found.strict_calls.calls
    assert (calls.triggers, calls.separator) == (("[[",), separator)
    assert [shape.tool for shape in calls.shapes] == ["a", "s"]
    assert found.tools[1]["function"]["parameters"]["required"] == ["x"]


def test_only_strict_tools_follow_their_schemas(use):
    declared = {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}
    loose = {"name": "l", "strict": False, "parameters": declared}
    tools = [{"type": "function", "function": loose}, strict("s", required=["x"])]
    pieces = [shape.pieces[1].schema for shape in use(tools).strict_calls.calls.shapes]
    assert pieces == [{"type": "object"}, {"type": "object", "required": ["x"]}]


@pytest.mark.parametrize("value", [None, False])
def test_a_tool_that_is_not_strict_is_not_constrained(use, value):
    lax = strict("s")
    lax["function"]["strict"] = value
    assert use([A, lax]).strict_calls is None
    assert use([strict("s")], tool_choice="none") == ToolUse([])


def test_a_forced_call_follows_its_schema_strict_or_not(use):
    assert use([strict("s")], tool_choice="required").strict_calls is None


@pytest.mark.parametrize("forces_always", [False, True])
def test_a_parser_that_cannot_constrain_optional_calls_says_so(tokenizer, forces_always):
    class Forcing(BracketParser):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            is_forced = at_least_one or forces_always
            return super().call_grammar(tools, at_least_one=True) if is_forced else None

    parsers = CompletionParsers(tools=calling(Forcing, SOURCE))
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), parsers)
    body = ChatBody(messages=[], tools=[A, strict("s")])
    with pytest.raises(InvalidRequestError, match="leave strict out") as caught:
        tool_use(body, frontend, STRICT)
    assert caught.value.param == "tools[1].function.strict"
    asyncio.run(frontend.shutdown())


def test_a_table_that_cannot_force_a_call_is_told_what_it_lacks(tokenizer):
    class Table(BracketParser):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return None

    parsers = CompletionParsers(tools=calling(Table, Source("mine.toml", FILE, "1")))
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), parsers)
    body = ChatBody(messages=[], tools=[strict("s")])
    with pytest.raises(InvalidRequestError, match=r"mine\.toml needs \[writing\] with triggers"):
        tool_use(body, frontend, STRICT)
    body.tool_choice = "required"
    with pytest.raises(InvalidRequestError, match=r"mine\.toml needs \[writing\]; send"):
        tool_use(body, frontend, STRICT)
    asyncio.run(frontend.shutdown())


def test_an_empty_list_of_allowed_tools_is_called_empty(use):
    with pytest.raises(InvalidRequestError, match="tools is empty; name the tools"):
        use([A], tool_choice=allowing())


def test_a_parser_that_cannot_force_a_call_says_so(tokenizer):
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), CompletionParsers())
    for choice in ("required", named("a")):
        with pytest.raises(InvalidRequestError, match="cannot force a call") as caught:
            tool_use(ChatBody(messages=[], tools=[A], tool_choice=choice), frontend, STRICT)
        assert caught.value.param == "tool_choice"
    asyncio.run(frontend.shutdown())


def regex(definition):
    grammar = {"syntax": "regex", "definition": definition}
    return {"type": "grammar", "grammar": grammar}


@pytest.mark.parametrize("form", [{}, {"format": None}, {"format": {"type": "text"}}])
def test_a_custom_tool_is_a_function_of_one_text(use, form):
    found = use([A, custom("run", description="Runs it", **form)])
    assert (found.tools[0], found.custom) == (A, {"run"})
    function = found.tools[1]["function"]
    assert (function["name"], function["description"]) == ("run", "Runs it")
    assert function["parameters"]["properties"]["input"]["type"] == "string"
    assert function["parameters"]["required"] == ["input"]
    assert found.strict_calls is None


def test_a_regex_of_a_custom_tool_is_enforced_where_calls_are_optional(use):
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
def test_a_regex_of_a_custom_tool_is_that_of_the_whole_input(use, definition, pattern):
    (tool,) = use([custom("run", format=regex(definition))]).tools
    assert tool["function"]["parameters"]["properties"]["input"]["pattern"] == pattern


def test_a_custom_tool_is_chosen_by_its_type(use):
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
def test_the_format_of_a_custom_tool_is_checked(use, form, param):
    with pytest.raises(InvalidRequestError) as caught:
        use([custom("run", format=form)])
    assert caught.value.param == f"tools[0].custom.format{param}"


def test_a_parser_that_cannot_enforce_a_format_says_so(tokenizer):
    class Lax(BracketParser):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return None

    parsers = CompletionParsers(tools=calling(Lax, SOURCE))
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), parsers)
    body = ChatBody(messages=[], tools=[custom("run", format=regex("a"))])
    with pytest.raises(InvalidRequestError, match="leave format out") as caught:
        tool_use(body, frontend, STRICT)
    assert caught.value.param == "tools[0].custom.format"
    asyncio.run(frontend.shutdown())
