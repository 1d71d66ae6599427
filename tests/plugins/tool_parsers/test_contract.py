"""The kit of tool parsers finds the mistakes that it is there for."""

import json
import re
from typing import ClassVar

import pytest

from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)
from quire.testing.tool_parsing import ToolParserContract, ToolSample, read_events
from quire_tool_parsers.hermes import HermesToolParser

TEXT = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


class WholeOnly(ToolParser):
    """Sees a call only if it comes in one piece."""

    def feed(self, delta):
        match = re.fullmatch(
            r'<tool_call>\{"name": "(\w+)", "arguments": (.*)\}</tool_call>', delta
        )
        if match is None:
            return [TextDelta(delta)]
        return [ToolCallStart(0, match[1]), ToolCallArguments(0, match[2]), ToolCallEnd(0)]

    def close(self):
        return []


class Strict(ToolParser):
    """Raises where JSON is broken."""

    def __init__(self):
        self.text = ""

    def feed(self, delta):
        self.text += delta
        return []

    def close(self):
        call = json.loads(self.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        arguments = json.dumps(call["arguments"])
        return [ToolCallStart(0, call["name"]), ToolCallArguments(0, arguments), ToolCallEnd(0)]


class Shared(HermesToolParser):
    """All instances read one text."""

    one: ClassVar = []

    def feed(self, delta):
        self.one.append(delta)
        return []

    def close(self):
        text = "".join(self.one)
        self.one.clear()
        parser = HermesToolParser()
        return parser.feed(text) + parser.close()


def contract(parser, arguments='{"a": 1}'):
    samples = (ToolSample(TEXT, "", (("f", arguments),)),)
    return type("Kit", (ToolParserContract,), {"parser": parser, "samples": samples})()


def test_a_parser_that_needs_the_whole_is_found():
    kit = contract(WholeOnly)
    kit.test_samples_are_read_as_they_should_be()
    with pytest.raises(AssertionError):
        kit.test_every_cut_in_two_gives_the_same()
    with pytest.raises(AssertionError):
        kit.test_single_characters_give_the_same()


def test_a_parser_that_raises_is_found():
    kit = contract(Strict)
    kit.test_every_cut_in_two_gives_the_same()
    with pytest.raises(ValueError, match="Expecting"):
        kit.test_half_an_answer_raises_nothing()
    with pytest.raises((ValueError, KeyError)):
        kit.test_a_lost_character_raises_nothing()


def test_a_parser_that_shares_state_is_found():
    kit = contract(Shared)
    kit.test_single_characters_give_the_same()
    with pytest.raises(AssertionError):
        kit.test_parsers_share_no_state()


def test_a_parser_that_reads_something_else_is_found():
    kit = contract(Strict, arguments='{"a":1}')
    with pytest.raises(AssertionError, match="was read as"):
        kit.test_samples_are_read_as_they_should_be()


@pytest.mark.parametrize(
    "events",
    [
        [TextDelta("")],
        [ToolCallStart(1, "f")],
        [ToolCallArguments(0, "{}")],
        [ToolCallEnd(0)],
        [ToolCallStart(0, "f"), ToolCallArguments(0, "[]"), ToolCallEnd(0)],
        [ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0), ToolCallEnd(0)],
    ],
)
def test_events_out_of_order_are_found(events):
    with pytest.raises(AssertionError):
        read_events(events)
