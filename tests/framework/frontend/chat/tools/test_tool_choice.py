"""Tools are functions of different names, and a choice among them is kept or refused."""

import pytest
from chat_parsers import calling
from server_parts import SOURCE, BracketParser

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.tools.tool_choice import ToolUse, tool_use
from quire.frontend.unknown_fields import UnknownFields
from quire.plugins.registry import FILE, Source
from quire.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def named(name):
    return {"type": "function", "function": {"name": name}}


A, B = tool("a"), tool("b")
STRICT = UnknownFields()


def custom(name, **fields):
    return {"type": "custom", "custom": {"name": name} | fields}


BEAMS = BeamSearchParams(beam_width=2)
NO_PARSER = CompletionParsers()
BRACKETS = CompletionParsers(tools=calling(BracketParser, SOURCE))


def use(tools, unknown=STRICT, *, parsers=BRACKETS, tool_choice=None, allows_parallel=True):
    return tool_use(tools, tool_choice, parsers, unknown, allows_parallel=allows_parallel)


def forced(found):
    return [shape.tool for shape in found.constraint.calls.shapes], found.constraint.calls.separator


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"allows_parallel": True}])
def test_the_model_may_call_what_there_is(fields):
    assert use([A, B], **fields) == ToolUse([A, B], None, True)


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_without_tools_nothing_is_called(tools, fields):
    assert use(tools, **fields) == ToolUse([])


def test_tools_that_must_not_be_called_are_not_shown():
    assert use([A, B], tool_choice="none") == ToolUse([])


def test_calls_one_after_another_are_kept_or_not():
    assert use([A], allows_parallel=False) == ToolUse([A], None, False)


@pytest.mark.parametrize(("parallel", "separator"), [(True, ""), (False, None)])
def test_a_call_that_is_required_is_of_any_tool(parallel, separator):
    found = use([A, B], tool_choice="required", allows_parallel=parallel)
    assert (found.tools, found.allows_parallel) == ([A, B], parallel)
    assert forced(found) == (["a", "b"], separator)


def test_a_call_of_one_tool_is_of_it_alone_and_once():
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
        ([A], {"tool_choice": {"type": "function", "function": "a"}}, "tool_choice"),
        ([A], {"tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice"),
        ([A, A], {"tool_choice": "none"}, "tools"),
    ],
)
def test_what_cannot_be_chosen_is_named(tools, fields, param):
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
def test_a_field_that_does_not_exist_is_refused_or_left_out(tools, choice, param, meant):
    with pytest.raises(UnknownFieldError, match=f"did you mean '{meant}'") as caught:
        use(tools, tool_choice=choice)
    assert caught.value.param == param
    if choice == "auto":
        with pytest.raises(UnknownFieldError):
            use(tools, tool_choice="none")
    lenient = UnknownFields(is_lenient=True)
    assert use(tools, lenient, tool_choice=choice).tools == tools


def allowing(*names, mode="auto", **fields):
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools} | fields}


def test_some_of_the_tools_are_allowed():
    assert use([A, B], tool_choice=allowing("b")) == ToolUse([B])
    assert use([A, B], tool_choice=allowing("b", "a")) == ToolUse([A, B])
    found = use([A, B], tool_choice=allowing("b", mode="required"))
    assert (found.tools, forced(found)) == ([B], (["b"], ""))


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowing("c"), "tool_choice.allowed_tools.tools"),
        (allowing("a", "c"), "tool_choice.allowed_tools.tools"),
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
def test_a_choice_among_tools_is_complete_and_of_the_tools(choice, param):
    with pytest.raises(InvalidRequestError) as caught:
        use([A, B], tool_choice=choice)
    assert caught.value.param == param


def strict(name, **parameters):
    function = {"name": name, "strict": True, "parameters": {"type": "object"} | parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(("parallel", "separator"), [(True, ""), (False, None)])
def test_calls_of_a_strict_tool_are_constrained_where_calls_are_optional(parallel, separator):
    found = use([A, strict("s", required=["x"])], allows_parallel=parallel)
    assert found.constraint is None
    calls = found.strict_calls.calls
    assert (calls.triggers, calls.separator) == (("[[",), separator)
    assert [shape.tool for shape in calls.shapes] == ["a", "s"]
    assert found.tools[1]["function"]["parameters"]["required"] == ["x"]


def test_only_strict_tools_follow_their_schemas():
    declared = {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}
    loose = {"name": "l", "strict": False, "parameters": declared}
    tools = [{"type": "function", "function": loose}, strict("s", required=["x"])]
    pieces = [shape.pieces[1].schema for shape in use(tools).strict_calls.calls.shapes]
    assert pieces == [{"type": "object"}, {"type": "object", "required": ["x"]}]


@pytest.mark.parametrize("value", [None, False])
def test_a_tool_that_is_not_strict_is_not_constrained(value):
    lax = strict("s")
    lax["function"]["strict"] = value
    assert use([A, lax]).strict_calls is None
    assert use([strict("s")], tool_choice="none") == ToolUse([])


def test_a_forced_call_follows_its_schema_strict_or_not():
    assert use([strict("s")], tool_choice="required").strict_calls is None


@pytest.mark.parametrize("forces_always", [False, True])
def test_a_parser_that_cannot_constrain_optional_calls_says_so(forces_always):
    class Forcing(BracketParser):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            is_forced = at_least_one or forces_always
            return super().call_grammar(tools, at_least_one=True) if is_forced else None

    parsers = CompletionParsers(tools=calling(Forcing, SOURCE))
    with pytest.raises(InvalidRequestError, match="leave strict out") as caught:
        use([A, strict("s")], parsers=parsers)
    assert caught.value.param == "tools[1].function.strict"


class NeverForcing(BracketParser):
    @classmethod
    def call_grammar(cls, tools, *, at_least_one):
        return None


def test_a_table_that_cannot_force_a_call_is_told_what_it_lacks():
    source = Source("mine.toml", FILE, "1")
    parsers = CompletionParsers(tools=calling(NeverForcing, source))
    with pytest.raises(InvalidRequestError, match=r"mine\.toml needs \[writing\] with triggers"):
        use([strict("s")], parsers=parsers)
    with pytest.raises(InvalidRequestError, match=r"mine\.toml needs \[writing\]; send"):
        use([strict("s")], parsers=parsers, tool_choice="required")


def test_an_empty_list_of_allowed_tools_is_called_empty():
    with pytest.raises(InvalidRequestError, match="tools is empty; name the tools"):
        use([A], tool_choice=allowing())


@pytest.mark.parametrize("choice", ["required", named("a")])
def test_a_parser_that_cannot_force_a_call_says_so(choice):
    parsers = CompletionParsers(tools=calling(NeverForcing, SOURCE))
    with pytest.raises(InvalidRequestError, match="cannot force a call") as caught:
        use([A], parsers=parsers, tool_choice=choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("name", "choice"), [("a", "required"), ("a", named("a")), ("s", None), ("s", "auto")]
)
def test_without_a_tool_parser_the_advice_is_to_name_one(name, choice):
    advice = r"no tool-call parser.*NAME \(in Python: tool_call_parser=NAME\), or send"
    with pytest.raises(InvalidRequestError, match=advice) as caught:
        use([A, strict("s")] if name == "s" else [A], parsers=NO_PARSER, tool_choice=choice)
    assert caught.value.param == "tools"


def test_without_a_tool_parser_tools_are_shown_if_nothing_is_asked_of_their_calls():
    assert use([A], parsers=NO_PARSER) == ToolUse([A])
    assert use([strict("s")], parsers=NO_PARSER, tool_choice="none") == ToolUse([])


def test_parameters_get_the_constraint_of_the_calls():
    found = use([strict("s")])
    assert found.constrained(SamplingParams(n=2)) == SamplingParams(
        n=2, structured_outputs=found.strict_calls
    )
    forcing = use([A], tool_choice="required")
    assert forcing.constrained(SamplingParams()).structured_outputs == forcing.constraint
    assert use([A]).constrained(SamplingParams()) == SamplingParams()
    assert use([A]).constrained(BEAMS) == BEAMS


def test_another_constraint_allows_no_calls_and_excludes_forced_ones():
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    assert use([strict("s")]).constrained(params) == params
    with pytest.raises(InvalidRequestError, match="and a forced tool call exclude") as caught:
        use([A], tool_choice="required").constrained(params)
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("fields", [{"tools": [strict("s")]}, {"tool_choice": "required"}])
def test_a_beam_search_follows_no_constraint_of_calls(fields):
    with pytest.raises(InvalidRequestError, match="leave out tool_choice and strict"):
        use(**{"tools": [A]} | fields).constrained(BEAMS)
