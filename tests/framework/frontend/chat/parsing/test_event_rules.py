"""Events of tool parsers keep the rules of the interface, or the parser has a fault."""

import pytest

from quire.frontend.chat.parsing.event_rules import BrokenRuleError, EventRules, reasoning_events
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


def checked(*events, **options):
    return [*EventRules(**options).checked(events)]


CALL = (ToolCallArguments(0, '{"a":'), ToolCallArguments(0, " 1}"), ToolCallEnd(0))


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((ToolCallStart(1, "f"),), "index of call 0 is 1"),
        ((ToolCallStart(0, "f"), ToolCallStart(0, "f")), "index of call 1 is 0"),
        ((ToolCallStart(0, ""),), "name of a call"),
        ((ToolCallStart(0, None),), "name of a call"),
        ((ToolCallArguments(0, "{}"),), "no open call 0"),
        ((ToolCallStart(0, "f"), ToolCallArguments(3, "{}")), "no open call 3"),
        ((ToolCallStart(0, "f"), ToolCallEnd(1)), "no open call 1"),
        ((ToolCallStart(0, "f"), *CALL, ToolCallArguments(0, "x")), "no open call 0"),
        ((ToolCallStart(0, "f"), *CALL, ToolCallEnd(0)), "no open call 0"),
        ((ToolCallStart(0, "f"), ToolCallEnd(0)), "no JSON object"),
        ((ToolCallStart(0, "f"), ToolCallArguments(0, "[1]"), ToolCallEnd(0)), "no JSON object"),
        ((TextDelta(None),), "the text of an event is a str, not None"),
        ((ToolCallStart(0, "f"), ToolCallArguments(0, b"{}")), "is a str, not b'{}'"),
        (("text",), "returns events"),
        ((None,), "returns events"),
    ],
)
def test_a_broken_rule_is_named(events, rule):
    with pytest.raises(BrokenRuleError, match=rule):
        checked(*events)


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (ContentDelta(None), "is a str, not None"),
        (ReasoningDelta(1), "is a str, not 1"),
        ("text", "returns events, not 'text'"),
        (TextDelta("a"), "returns events, not TextDelta"),
    ],
)
def test_a_rule_that_a_reasoning_parser_breaks_is_named(event, rule):
    with pytest.raises(BrokenRuleError, match=rule):
        reasoning_events([event])


def test_content_of_a_reasoning_parser_is_text_for_the_tool_parser():
    events = [ReasoningDelta("a"), ContentDelta(""), ReasoningDelta(""), ContentDelta("b")]
    assert reasoning_events(events) == [ReasoningDelta("a"), TextDelta("b")]


def test_events_that_keep_the_rules_are_passed_on_without_empty_ones():
    events = (TextDelta("a"), ToolCallStart(0, "f", "own:0"), *CALL, TextDelta("b"))
    empty = (TextDelta(""), *events[:2], ToolCallArguments(0, ""), *events[2:])
    assert checked(*empty) == [*events]


def test_a_call_that_is_void_needs_no_arguments():
    assert len(checked(ToolCallStart(0, "f"), ToolCallStart(1, "g"), TextDelta("x"))) == 3


def test_numbers_of_arguments_may_have_any_digits():
    arguments = ToolCallArguments(0, f'{{"a": [{"9" * 5000}]}}')
    assert checked(ToolCallStart(0, "f", "own"), arguments, ToolCallEnd(0))[1] == arguments


def test_each_call_has_an_id_of_its_own():
    ids = [
        event.id
        for event in checked(
            ToolCallStart(0, "f", "own:0"), ToolCallStart(1, "f", "own:0"),
            ToolCallStart(2, "f", "a b"), ToolCallStart(3, "f"), id_length=9,
        )
    ]  # fmt: skip
    assert ids[0] == "own:0"
    assert len({*ids}) == 4
    assert all(len(each) == 9 for each in ids[1:])
