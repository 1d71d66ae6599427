"""Tool-parser conformance kit: every check rejects a broken parser, and a right one passes."""

import json
from typing import ClassVar

import pytest

from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)
from quire.testing.tool_parsing import ReadCompletion, ToolParserContract, ToolSample, read_events
from quire_tool_parsers.hermes import HermesToolParser

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SAMPLES = (
    ToolSample(f"So:\n{CALL}", "So:", (("f", '{"a": 1}'),)),
    ToolSample("No <tool> and\n", "No <tool> and\n"),
    ToolSample(
        f'{CALL}\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call> Bye.',
        "Bye.",
        (("f", '{"a": 1}'), ("g", "{}")),
    ),
)


class TestHermes(ToolParserContract):
    parser = HermesToolParser
    samples = SAMPLES


class SpellsArgumentsAnew(HermesToolParser):
    def feed(self, delta):
        return [self.respelled(event) for event in super().feed(delta)]

    def respelled(self, event):
        if isinstance(event, ToolCallArguments):
            return ToolCallArguments(event.index, event.piece.replace(": ", ":"))
        return event


class KeepsBlanks(HermesToolParser):
    """Returns the line break before a call as content, at the end of the completion."""

    def close(self):
        return [*super().close(), TextDelta("\n")]


class SeesTagsInOnePiece(HermesToolParser):
    """Emits part of a tag as text at once."""

    def feed(self, delta):
        events = super().feed(delta)
        if self._tag and not self._is_closing:
            events.append(TextDelta(self._tag))
            self._tag = ""
        return events


class LosesSingleBlanks(HermesToolParser):
    def feed(self, delta):
        return super().feed("" if delta == " " else delta)


class Strict(HermesToolParser):
    """Raises on an unfinished call."""

    def close(self):
        if self._call is not None:
            raise ValueError("the call is not complete")
        return super().close()


class KeepsAPartialClosingTag(HermesToolParser):
    def close(self):
        self._is_closing = False
        return super().close()


class LosesBrokenCalls(HermesToolParser):
    def close(self):
        self._call = None
        return super().close()


class LosesAnnouncedCalls(HermesToolParser):
    """Loses unfinished calls whose start was emitted, and the blanks before them."""

    def close(self):
        if self._call is not None and self._is_announced:
            self._call, self._blanks = None, ""
        return super().close()


class InventsText(HermesToolParser):
    """Adds text before the text of an unfinished call."""

    def close(self):
        is_broken_off = self._call is not None
        events = super().close()
        return [TextDelta("Sorry: "), *events] if is_broken_off else events


class GivesTheNameOnly(HermesToolParser):
    """Returns only the name of a call that ends after it."""

    def close(self):
        if self._call is not None and self._call.name:
            name, self._call = self._call.name, None
            return [*super().close(), TextDelta(name)]
        return super().close()


class EndsCallsByItself(HermesToolParser):
    """Completes an unfinished call with the missing braces."""

    def close(self):
        if self._call is not None and self._is_announced and not self._call._arguments:
            return [ToolCallArguments(self._index, "{}"), ToolCallEnd(self._index)]
        return super().close()


class SplitsInTwo(HermesToolParser):
    """Counts pieces, and parses the end of a long stream differently."""

    num_pieces = 0

    def feed(self, delta):
        self.num_pieces += 1
        return super().feed(delta)

    def close(self):
        is_stream = self.num_pieces > 3
        return [*super().close(), *([TextDelta("~")] if is_stream and self._has_text else [])]


class GivesUpInAStream(SplitsInTwo):
    """Loses unfinished calls that came in many pieces."""

    def close(self):
        if self.num_pieces > 3 and self._call is not None and not self._is_announced:
            self._call = None
        return HermesToolParser.close(self)


class ForgetsGarbledCalls(SplitsInTwo):
    """Loses calls that break in the middle and came in many pieces."""

    def _break_call(self):
        if self.num_pieces > 3 and self._call.is_broken:
            self._leave_call()
            return iter(())
        return super()._break_call()


class Shared(HermesToolParser):
    """Shares one text among all instances."""

    one: ClassVar = []

    def feed(self, delta):
        self.one.append(delta)
        return []

    def close(self):
        text = "".join(self.one)
        self.one.clear()
        parser = HermesToolParser()
        return parser.feed(text) + parser.close()


WHOLE = "samples_are_parsed_as_expected"
TWO = "every_cut_in_two_gives_the_same"
ONE = "single_characters_give_the_same"
TRUNCATED = "a_truncated_completion_raises_nothing"
LOST = "a_lost_character_raises_nothing"
SHARE = "parsers_share_no_state"
PROOFS = [
    (SpellsArgumentsAnew, WHOLE, "was parsed as .*expected"),
    (KeepsBlanks, WHOLE, "was parsed as .*expected"),
    (SeesTagsInOnePiece, TWO, "differs from that of one piece"),
    (LosesSingleBlanks, ONE, "character by character"),
    (SplitsInTwo, ONE, "character by character"),
    (GivesUpInAStream, TRUNCATED, "character by character, the result of .* differs"),
    (EndsCallsByItself, TRUNCATED, "has calls that the whole has not"),
    (KeepsAPartialClosingTag, TRUNCATED, "gives the content .*the text of the unfinished call"),
    (LosesBrokenCalls, TRUNCATED, "gives the content"),
    (LosesAnnouncedCalls, TRUNCATED, "gives the content 'So:'"),
    (GivesTheNameOnly, TRUNCATED, "gives the content"),
    (InventsText, TRUNCATED, "gives the content .*Sorry: "),
    (ForgetsGarbledCalls, LOST, "character by character, the result of .* differs"),
    (Shared, SHARE, "share state"),
]


def kit(wrong):
    return type("Kit", (ToolParserContract,), {"parser": wrong, "samples": SAMPLES})()


@pytest.mark.parametrize(("wrong", "test", "reason"), PROOFS)
def test_a_broken_parser_is_rejected(wrong, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(kit(wrong), f"test_{test}")()


@pytest.mark.parametrize("test", [TRUNCATED, LOST])
def test_an_error_of_a_parser_is_reported(test):
    with pytest.raises(ValueError, match="the call is not complete"):
        getattr(kit(Strict), f"test_{test}")()


def test_each_test_of_the_kit_has_a_parser_that_fails_it():
    tests = {name for name in dir(ToolParserContract) if name.startswith("test_")}
    assert tests == {f"test_{test}" for _, test, _ in PROOFS}


START, PIECE, END = ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([TextDelta("")], "must not be empty"),
        ([ToolCallStart(1, "f")], "must have index 0, got 1"),
        ([START, PIECE, END, START], "must have index 1, got 0"),
        ([PIECE], "ToolCallArguments for call 0, which is not open"),
        ([START, PIECE, END, PIECE], "ToolCallArguments for call 0"),
        ([END], "ToolCallEnd for call 0, which is not open"),
        ([START, PIECE, END, END], "ToolCallEnd for call 0"),
        ([START, ToolCallArguments(0, "[]"), END], "arguments must be a JSON object"),
        ([START, ToolCallArguments(0, '{"a'), END], "arguments must be a JSON object"),
        ([START, END], "arguments must be a JSON object"),
    ],
)
def test_events_that_break_a_rule_are_rejected(events, reason):
    with pytest.raises(AssertionError, match=reason):
        read_events(events)


def test_events_add_up_to_text_and_calls():
    events = [
        TextDelta("a"), START, ToolCallArguments(0, '{"x":'), TextDelta("b"),
        ToolCallStart(1, "g"), ToolCallArguments(1, "{}"), ToolCallArguments(0, "1}"),
        ToolCallEnd(1), END, ToolCallStart(2, "void"), TextDelta("c"),
    ]  # fmt: skip
    assert read_events(events) == ReadCompletion(
        "abc", [("g", "{}"), ("f", '{"x":1}')], num_unfinished=1
    )


def test_a_parser_cannot_force_calls_unless_it_says_how():
    class Plain(ToolParser):
        def feed(self, delta):
            return [TextDelta(delta)] if delta else []

        def close(self):
            return []

    tool = {"name": "f", "parameters": json.loads('{"type": "object"}')}
    assert Plain.call_grammar([tool], at_least_one=True) is None
