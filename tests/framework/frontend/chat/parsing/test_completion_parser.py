"""Reasoning, text and calls are parsed from one stream, in either order of the parsers."""

import pytest
from chat_parsers import parser_of
from hypothesis import given
from hypothesis import strategies as st
from letter_parsers import DashThinking, HoldingThoughts, UpperCalls

from quire.errors import RequestFailedError
from quire.frontend.chat.parsing.completion_parser import (
    CompletionParser,
    ParsedCompletion,
    gather,
)
from quire.frontend.chat.parsing.parser_guard import ParserOrigin
from quire.frontend.chat.parsing.tool_stage import ToolStage
from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.plugins.registry import Source

ACME = Source("acme", "acme-quire", "1.0")


def without_ids(events):
    return [
        ToolCallStart(event.index, event.name) if isinstance(event, ToolCallStart) else event
        for event in events
    ]


def calls_of(parsed):
    return [(call.name, call.arguments) for call in parsed.calls]


def test_without_parsers_all_is_text():
    parser = CompletionParser()
    assert parser.feed("a<b>") == [TextDelta("a<b>")]
    assert parser.feed("") == []
    assert parser.close() == []


def test_thinking_is_split_off_before_calls():
    parser = parser_of(DashThinking(), UpperCalls())
    assert parser.feed("hm A") == [ReasoningDelta("hm A")]
    assert without_ids(parser.feed("-aB")) == [
        TextDelta("a"), ToolCallStart(0, "B"), ToolCallArguments(0, "{}"), ToolCallEnd(0),
    ]  # fmt: skip
    assert parser.feed("?") == []
    assert parser.close() == [TextDelta("?")]


def test_a_whole_completion_is_parsed():
    whole = parser_of(DashThinking(), UpperCalls()).read_whole("hm-aBX?")
    assert (whole.text, whole.reasoning, calls_of(whole)) == ("a?", "hm", [("B", "{}")])
    assert CompletionParser().read_whole("a") == ParsedCompletion("a", None, ())


def test_a_parser_that_fails_is_named_without_its_traceback(caplog):
    parser = CompletionParser(tools=ToolStage(UpperCalls(), ParserOrigin(ACME)))
    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)") as caught:
        parser.feed("a!")
    assert "a bug" not in str(caught.value)
    assert "a bug" in caplog.text


def test_what_the_reasoning_parser_holds_back_is_read_for_calls():
    parser = parser_of(HoldingThoughts("closed"), UpperCalls())
    assert parser.feed("aB") == [TextDelta("a")]
    assert without_ids(parser.close()) == [
        ToolCallStart(0, "B"), ToolCallArguments(0, "{}"), ToolCallEnd(0),
    ]  # fmt: skip
    assert parser_of(HoldingThoughts()).read_whole("hm") == ParsedCompletion("", "hm", ())


def test_text_that_is_empty_is_no_event_and_thinking_that_is_none_is_none():
    assert parser_of(HoldingThoughts("closed")).feed("") == []
    assert parser_of(DashThinking()).read_whole("-a").reasoning is None
    assert parser_of(DashThinking()).read_whole("").reasoning is None


def test_calls_of_a_whole_completion_are_joined_in_the_order_of_their_ends():
    events = [
        ToolCallStart(0, "a", "x"), ToolCallStart(1, "b", "y"), ToolCallArguments(1, "{"),
        ToolCallArguments(0, "["), TextDelta("x"), ToolCallArguments(1, "}"), ToolCallEnd(1),
        ToolCallArguments(0, "]"), ToolCallEnd(0), ToolCallStart(2, "c"), ReasoningDelta("y"),
    ]  # fmt: skip
    parsed = gather(events)
    assert (parsed.text, parsed.reasoning) == ("x", "y")
    assert [(call.id, call.name, call.arguments) for call in parsed.calls] == [
        ("y", "b", "{}"), ("x", "a", "[]"),
    ]  # fmt: skip


def test_a_call_in_the_reasoning_ends_it():
    parser = parser_of(DashThinking(), UpperCalls(), reads_calls_first=True)
    parsed = parser.read_whole("hmBac")
    assert (parsed.reasoning, parsed.text, calls_of(parsed)) == ("hm", "ac", [("B", "{}")])


def test_a_call_that_breaks_off_in_the_reasoning_does_not_end_it():
    parser = parser_of(DashThinking(), UpperCalls(), reads_calls_first=True)
    parsed = parser.read_whole("hmXa-c")
    assert (parsed.reasoning, parsed.text, calls_of(parsed)) == ("hma", "c", [])


def test_what_is_held_back_of_the_reasoning_belongs_to_it_when_a_call_ends_it():
    parser = parser_of(HoldingThoughts(), UpperCalls(), reads_calls_first=True)
    events = without_ids(parser.feed("hmBc"))
    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["h", "m"]
    assert parser.close() == [TextDelta("c")]


def test_special_tokens_are_kept_from_the_user():
    parser = parser_of(DashThinking(), removed=Markers(("<|x|>", "<|xy|>")))
    parsed = parser.read_whole("h<|x|>m<|-a<|xy|>b<|x")
    assert (parsed.reasoning, parsed.text) == ("hm<|", "ab<|x")


@given(text=st.text("ab<|x>yB?X-", max_size=40), data=st.data())
def test_any_split_of_a_completion_gives_the_same(text, data):
    for first in (False, True):
        options = {"reads_calls_first": first, "removed": Markers(("<|x|>", "<|x|>y", "|"))}
        whole = parser_of(HoldingThoughts(), UpperCalls(), **options).read_whole(text)
        parser, events, rest = parser_of(HoldingThoughts(), UpperCalls(), **options), [], text
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            events += parser.feed(rest[:size])
            rest = rest[size:]
        split = gather([*events, *parser.close()])
        assert (split.text, split.reasoning) == (whole.text, whole.reasoning)
        assert calls_of(split) == calls_of(whole)
