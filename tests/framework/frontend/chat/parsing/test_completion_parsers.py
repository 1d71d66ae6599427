"""Each completion has parsers of its own; an error of one fails a request, and names the plugin."""

import pytest
from chat_parsers import calling, thinking
from letter_parsers import DashThinking, HoldingThoughts, UpperCalls

from quire.errors import InvalidRequestError, RequestFailedError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    SchemaPiece,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import CompletionOutput
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

ACME = Source("acme", "acme-quire", "1.0")
TOOLS = [{"type": "function", "function": {"name": "B"}}]


def test_each_request_gets_its_own_parsers():
    make = CompletionParsers(thinking(DashThinking, ACME), calling(UpperCalls, ACME))
    assert make("", tools=TOOLS).read_whole("-B").calls[0].name == "B"
    assert make("", tools=TOOLS).read_whole("-B").calls[0].name == "B"
    assert make("", tools=None).read_whole("-B").text == "B"
    assert CompletionParsers()("", tools=TOOLS).read_whole("-B").text == "-B"


def test_a_call_grammar_comes_from_the_tool_parser(caplog):
    class Forcing(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return CallGrammar(
                (CallShape(tools[0]["name"], ("A{}",)),), "," if at_least_one else None
            )

    class Broken(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            raise ValueError("a bug")

    make = CompletionParsers(tools=calling(Forcing, ACME))
    assert make.reads_calls
    for at_least_one, separator in ((True, ","), (False, None)):
        grammar = make.call_grammar([{"name": "A"}], at_least_one=at_least_one)
        assert (grammar.shapes[0].tool, grammar.separator) == ("A", separator)
    assert not CompletionParsers().reads_calls
    assert CompletionParsers().call_grammar([{"name": "A"}], at_least_one=True) is None
    with pytest.raises(RequestFailedError, match=r"acme.*grammar of tool calls") as caught:
        CompletionParsers(tools=calling(Broken, ACME)).call_grammar(
            [{"name": "A"}], at_least_one=True
        )
    assert "a bug" not in str(caught.value)
    assert "a bug" in caplog.text


def test_the_tool_parser_always_gets_the_schema_of_an_object():
    class Forcing(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return CallGrammar(
                tuple(CallShape(each["name"], (SchemaPiece(each["parameters"]),)) for each in tools)
            )

    make = CompletionParsers(tools=calling(Forcing, ACME))
    grammar = make.call_grammar(
        [{"name": "now"}, {"name": "b", "parameters": None}], at_least_one=True
    )
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert [shape.pieces[0].schema for shape in grammar.shapes] == [none, none]


@pytest.mark.parametrize(
    "wrong", ["start: x", CallGrammar(("a",)), CallGrammar((CallShape("f", (3,)),))]
)
def test_a_tool_parser_with_a_grammar_that_is_none_is_named(wrong):
    class Wrong(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return wrong

    with pytest.raises(RequestFailedError, match=r"acme.*grammar of tool calls"):
        CompletionParsers(tools=calling(Wrong, ACME)).call_grammar(
            [{"name": "A"}], at_least_one=True
        )


def test_a_parser_that_cannot_be_built_ends_the_request():
    class Broken(UpperCalls):
        def __init__(self):
            raise OSError("no grammar file")

    make = CompletionParsers(tools=calling(Broken, ACME))
    with pytest.raises(RequestFailedError, match="acme"):
        make("", tools=TOOLS)


class BrokenEnd(UpperCalls):
    def close(self):
        raise ValueError("a bug")


def test_a_parser_that_fails_at_the_end_is_named_too(caplog):
    other = Source("other", "other-quire", "2.0")

    class BrokenThoughts(HoldingThoughts):
        error = ValueError("a bug")

    cases = (
        (
            CompletionParsers(thinking(BrokenThoughts, ACME), calling(UpperCalls, other)),
            "acme",
        ),
        (
            CompletionParsers(thinking(DashThinking, ACME), calling(BrokenEnd, other)),
            "other",
        ),
    )
    for make, name in cases:
        parser = make("", tools=TOOLS)
        parser.feed("a")
        with pytest.raises(RequestFailedError, match=f"plugin {name}") as caught:
            parser.close()
        assert "a bug" not in str(caught.value)


def test_each_parser_is_blamed_for_its_own_failure():
    class Broken(DashThinking):
        def feed(self, delta):
            raise OSError("a bug")

    other = Source("other", "other-quire", "2.0")
    make = CompletionParsers(thinking(Broken, ACME), calling(UpperCalls, other))
    with pytest.raises(RequestFailedError, match="plugin acme"):
        make("", tools=TOOLS).feed("a")
    make = CompletionParsers(thinking(DashThinking, ACME), calling(UpperCalls, other))
    with pytest.raises(RequestFailedError, match="plugin other"):
        make("", tools=TOOLS).feed("-!")


def test_what_a_parser_refuses_on_purpose_is_its_own_error():
    class Refusing(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            raise InvalidRequestError("tool 'x' cannot be forced", param="tools")

    with pytest.raises(InvalidRequestError, match="cannot be forced") as caught:
        CompletionParsers(tools=calling(Refusing, ACME)).call_grammar(
            [{"name": "x"}], at_least_one=True
        )
    assert caught.value.param == "tools"


def test_the_reasoning_parser_sees_the_prompt():
    make = CompletionParsers(thinking(HoldingThoughts, ACME))
    assert make("closed", tools=None).read_whole("ab").text == "ab"
    assert make("open", tools=None).read_whole("ab").reasoning == "ab"


@pytest.mark.parametrize(("end", "calls"), [("stop", []), ("length", ["X"]), ("abort", ["X"])])
def test_the_last_call_of_a_whole_output_is_cut_unless_the_model_ended_it(end, calls):
    output = CompletionOutput(index=0, text="aX", token_ids=[1], finish_reason=end)
    CompletionParsers(tools=calling(UpperCalls, ACME)).split([output], "", TOOLS)
    assert (output.text, [call.name for call in output.tool_calls]) == ("a", calls)


def test_a_whole_output_is_split_in_place():
    output = CompletionOutput(index=0, text="hm-aBcD", token_ids=[1])
    plain = CompletionOutput(index=1, text="hm-aBcD", token_ids=[1])
    parsers = CompletionParsers(thinking(DashThinking, ACME), calling(UpperCalls, ACME))
    parsers.split([output], "", TOOLS)
    parsers.split([plain], "", None)
    assert (plain.text, plain.reasoning, plain.tool_calls) == ("aBcD", "hm", [])
    assert (output.text, output.reasoning) == ("ac", "hm")
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("B", "{}"), ("D", "{}")]
    assert len({call.id for call in output.tool_calls}) == 2


def test_parsers_see_the_special_tokens_that_they_ask_for_and_users_do_not():
    special = {1: "<|a|>", 2: "<|b|>", 3: "<|c|>", 4: ""}
    make = CompletionParsers(
        thinking(DashThinking, ACME, markers=("<|c|>",)),
        calling(UpperCalls, ACME, markers=("<|a|><|z|>",)),
        special,
    )
    assert make.shown_special_tokens(TOOLS) == {1, 3}
    assert make.shown_special_tokens(None) == {3}
    assert make("", tools=TOOLS).read_whole("h<|c|>-<|a|>x<|b|>").text == "x<|b|>"
    assert make("", tools=None).read_whole("h<|c|>-<|a|>x").text == "<|a|>x"
    shown = SamplingParams(skip_special_tokens=False)
    kept = make("", tools=TOOLS, params=shown).read_whole("h<|c|>-<|a|>x")
    assert (kept.reasoning, kept.text) == ("h<|c|>", "<|a|>x")


def test_a_call_may_end_the_reasoning():
    for ends in (False, True):
        make = CompletionParsers(
            thinking(DashThinking, ACME), calling(UpperCalls, ACME, calls_end_reasoning=ends)
        )
        assert len(make("", tools=TOOLS).read_whole("hmB").calls) == ends


def test_the_parser_knows_the_functions_of_the_request():
    class Knowing(UpperCalls):
        @classmethod
        def for_tools(cls, tools):
            return cls({tool["name"] for tool in tools})

        def __init__(self, names):
            super().__init__()
            assert names == {"B"}

    make = CompletionParsers(tools=calling(Knowing, ACME))
    assert make("", tools=TOOLS).read_whole("B").calls[0].name == "B"


def test_events_that_break_a_rule_are_the_plugins_fault(caplog):
    class Wrong(UpperCalls):
        def feed(self, delta):
            return [ToolCallStart(3, "B"), ToolCallEnd(3)]

    make = CompletionParsers(tools=calling(Wrong, ACME))
    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)"):
        make("", tools=TOOLS).feed("a")
    assert "the index of call 0 is 3" in caplog.text


def test_ids_for_the_template_come_from_the_tool_parser():
    class Renaming(UpperCalls):
        @classmethod
        def prompt_call_id(cls, call_id, name, number):
            return (
                call_id if call_id == "kept id" else "a b" if name == "bad" else f"{name}:{number}"
            )

    make = CompletionParsers(tools=calling(Renaming, ACME))
    assert make.prompt_call_id("call_1", "f", 2) == "f:2"
    assert make.prompt_call_id("kept id", "f", 2) == "kept id"
    assert CompletionParsers().prompt_call_id("call_1", "f", 2) == "call_1"
    with pytest.raises(RequestFailedError, match="acme"):
        make.prompt_call_id("call_1", "bad", 0)
