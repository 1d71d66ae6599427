"""Reasoning, text and calls are parsed from one stream; a parser error fails one request."""

import pytest

from quire.errors import InvalidRequestError, RequestFailedError
from quire.frontend.chat.completion_parser import (
    CompletionParser,
    CompletionParsers,
    ParsedCompletion,
    ParserChoice,
    gather,
)
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    SchemaPiece,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)
from quire.outputs import CompletionOutput
from quire.plugins.registry import Source

ACME = Source("acme", "acme-quire", "1.0")


class DashThinking(ReasoningParser):
    """Thinks until the first dash."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._is_thinking = True

    @property
    def is_thinking(self):
        return self._is_thinking

    def feed(self, delta):
        if not self._is_thinking:
            return [ContentDelta(delta)]
        thought, dash, rest = delta.partition("-")
        self._is_thinking = not dash
        events = [ReasoningDelta(thought)] if thought else []
        return events + ([ContentDelta(rest)] if rest else [])

    def close(self):
        return []


class UpperCalls(ToolParser):
    """Capital letters are calls; `?` is held back; `!` is a bug."""

    def __init__(self):
        self._held = ""
        self._num_calls = 0

    def feed(self, delta):
        events = []
        for character in delta:
            events += self._read(character)
        return events

    def close(self):
        return [TextDelta(self._held)] if self._held else []

    def _read(self, character):
        if character == "!":
            raise ValueError("a bug")
        if character == "?":
            self._held += character
            return []
        if not character.isupper():
            return [TextDelta(character)]
        index, self._num_calls = self._num_calls, self._num_calls + 1
        ends = [] if character == "X" else [ToolCallEnd(index)]
        return [ToolCallStart(index, character), ToolCallArguments(index, "{}"), *ends]


def test_without_parsers_all_is_text():
    parser = CompletionParser()
    assert parser.feed("a<b>") == [TextDelta("a<b>")]
    assert parser.feed("") == []
    assert parser.close() == []


def test_thinking_is_split_off_before_calls():
    parser = CompletionParser(DashThinking(), UpperCalls())
    assert parser.feed("hm A") == [ReasoningDelta("hm A")]
    assert parser.feed("-aB") == [
        TextDelta("a"), ToolCallStart(0, "B"), ToolCallArguments(0, "{}"), ToolCallEnd(0),
    ]  # fmt: skip
    assert parser.feed("?") == []
    assert parser.close() == [TextDelta("?")]


def test_a_whole_completion_is_parsed():
    whole = CompletionParser(DashThinking(), UpperCalls()).read_whole("hm-aBX?")
    assert whole == ParsedCompletion("a?", "hm", (("B", "{}"),))
    assert CompletionParser().read_whole("a") == ParsedCompletion("a", None, ())


def test_a_parser_that_fails_is_named_without_its_traceback(caplog):
    parser = CompletionParser(None, UpperCalls(), tool_source=ACME)
    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)") as caught:
        parser.feed("a!")
    assert "a bug" not in str(caught.value)
    assert "a bug" in caplog.text


def test_each_request_gets_its_own_parsers():
    make = CompletionParsers(ParserChoice(DashThinking, ACME), ParserChoice(UpperCalls, ACME))
    assert make("", with_tools=True).read_whole("-B").calls == (("B", "{}"),)
    assert make("", with_tools=True).read_whole("-B").calls == (("B", "{}"),)
    assert make("", with_tools=False).read_whole("-B").text == "B"
    assert CompletionParsers()("", with_tools=True).read_whole("-B").text == "-B"


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

    make = CompletionParsers(tools=ParserChoice(Forcing, ACME))
    assert make.reads_calls
    for at_least_one, separator in ((True, ","), (False, None)):
        grammar = make.call_grammar([{"name": "A"}], at_least_one=at_least_one)
        assert (grammar.shapes[0].tool, grammar.separator) == ("A", separator)
    assert not CompletionParsers().reads_calls
    assert CompletionParsers().call_grammar([{"name": "A"}], at_least_one=True) is None
    with pytest.raises(RequestFailedError, match=r"acme.*grammar of tool calls") as caught:
        CompletionParsers(tools=ParserChoice(Broken, ACME)).call_grammar(
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

    make = CompletionParsers(tools=ParserChoice(Forcing, ACME))
    grammar = make.call_grammar(
        [{"name": "now"}, {"name": "b", "parameters": None}], at_least_one=True
    )
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert [shape.pieces[0].schema for shape in grammar.shapes] == [none, none]
    with pytest.raises(InvalidRequestError) as caught:
        make.call_grammar([{"name": "b", "parameters": {"type": "array"}}], at_least_one=True)
    assert caught.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    "wrong", ["start: x", CallGrammar(("a",)), CallGrammar((CallShape("f", (3,)),))]
)
def test_a_tool_parser_with_a_grammar_that_is_none_is_named(wrong):
    class Wrong(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            return wrong

    with pytest.raises(RequestFailedError, match=r"acme.*grammar of tool calls"):
        CompletionParsers(tools=ParserChoice(Wrong, ACME)).call_grammar(
            [{"name": "A"}], at_least_one=True
        )


def test_a_parser_that_cannot_be_built_ends_the_request():
    class Broken(UpperCalls):
        def __init__(self):
            raise OSError("no grammar file")

    make = CompletionParsers(tools=ParserChoice(Broken, ACME))
    with pytest.raises(RequestFailedError, match="acme"):
        make("", with_tools=True)


class HoldingThoughts(DashThinking):
    """Holds its last letter back until the end, and may fail there."""

    error = None

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._is_thinking = prompt_text != "closed"
        self._last = ""

    def feed(self, delta):
        text, self._last = self._last + delta[:-1], delta[-1:]
        return super().feed(text) if text else []

    def close(self):
        if self.error is not None:
            raise self.error
        return super().feed(self._last) if self._last else []


class BrokenEnd(UpperCalls):
    def close(self):
        raise ValueError("a bug")


def test_what_the_reasoning_parser_holds_back_is_read_for_calls():
    parser = CompletionParser(HoldingThoughts("closed"), UpperCalls())
    assert parser.feed("aB") == [TextDelta("a")]
    assert parser.close() == [
        ToolCallStart(0, "B"), ToolCallArguments(0, "{}"), ToolCallEnd(0),
    ]  # fmt: skip
    assert CompletionParser(HoldingThoughts()).read_whole("hm") == ParsedCompletion("", "hm", ())


def test_a_parser_that_fails_at_the_end_is_named_too(caplog):
    other = Source("other", "other-quire", "2.0")

    class BrokenThoughts(HoldingThoughts):
        error = ValueError("a bug")

    cases = (
        (
            CompletionParsers(ParserChoice(BrokenThoughts, ACME), ParserChoice(UpperCalls, other)),
            "acme",
        ),
        (
            CompletionParsers(ParserChoice(DashThinking, ACME), ParserChoice(BrokenEnd, other)),
            "other",
        ),
    )
    for make, name in cases:
        parser = make("", with_tools=True)
        parser.feed("a")
        with pytest.raises(RequestFailedError, match=f"plugin {name}") as caught:
            parser.close()
        assert "a bug" not in str(caught.value)


def test_each_parser_is_blamed_for_its_own_failure():
    class Broken(DashThinking):
        def feed(self, delta):
            raise OSError("a bug")

    other = Source("other", "other-quire", "2.0")
    make = CompletionParsers(ParserChoice(Broken, ACME), ParserChoice(UpperCalls, other))
    with pytest.raises(RequestFailedError, match="plugin acme"):
        make("", with_tools=True).feed("a")
    make = CompletionParsers(ParserChoice(DashThinking, ACME), ParserChoice(UpperCalls, other))
    with pytest.raises(RequestFailedError, match="plugin other"):
        make("", with_tools=True).feed("-!")


def test_what_a_parser_refuses_on_purpose_is_its_own_error():
    class Refusing(UpperCalls):
        @classmethod
        def call_grammar(cls, tools, *, at_least_one):
            raise InvalidRequestError("tool 'x' cannot be forced", param="tools")

    with pytest.raises(InvalidRequestError, match="cannot be forced") as caught:
        CompletionParsers(tools=ParserChoice(Refusing, ACME)).call_grammar(
            [{"name": "x"}], at_least_one=True
        )
    assert caught.value.param == "tools"


def test_the_reasoning_parser_sees_the_prompt():
    make = CompletionParsers(ParserChoice(HoldingThoughts, ACME))
    assert make("closed", with_tools=False).read_whole("ab").text == "ab"
    assert make("open", with_tools=False).read_whole("ab").reasoning == "ab"


def test_text_that_is_empty_is_no_event_and_thinking_that_is_none_is_none():
    assert CompletionParser(HoldingThoughts("closed")).feed("") == []
    assert CompletionParser(DashThinking()).read_whole("-a").reasoning is None
    assert CompletionParser(DashThinking()).read_whole("").reasoning is None


def test_calls_of_a_whole_completion_are_joined_in_the_order_of_their_ends():
    events = [
        ToolCallStart(0, "a"), ToolCallStart(1, "b"), ToolCallArguments(1, "{"),
        ToolCallArguments(0, "["), TextDelta("x"), ToolCallArguments(1, "}"), ToolCallEnd(1),
        ToolCallArguments(0, "]"), ToolCallEnd(0), ToolCallStart(2, "c"), ReasoningDelta("y"),
    ]  # fmt: skip
    assert gather(events) == ParsedCompletion("x", "y", (("b", "{}"), ("a", "[]")))


def test_a_whole_output_is_split_in_place():
    output = CompletionOutput(index=0, text="hm-aBcD", token_ids=[1])
    plain = CompletionOutput(index=1, text="hm-aBcD", token_ids=[1])
    parsers = CompletionParsers(ParserChoice(DashThinking, ACME), ParserChoice(UpperCalls, ACME))
    parsers.split([output], "", [{}])
    parsers.split([plain], "", None)
    assert (plain.text, plain.reasoning, plain.tool_calls) == ("aBcD", "hm", [])
    assert (output.text, output.reasoning) == ("ac", "hm")
    assert [(call.id, call.name, call.arguments) for call in output.tool_calls] == [
        ("call_0", "B", "{}"), ("call_1", "D", "{}"),
    ]  # fmt: skip
