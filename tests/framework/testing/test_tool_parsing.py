"""The kit of tool parsers: each fault is seen where it should be. TestHermes shows a right one."""

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
    """Gives the line break before a call to the user, with the end of the answer."""

    def close(self):
        return [*super().close(), TextDelta("\n")]


class SeesTagsInOnePiece(HermesToolParser):
    """Half a tag is text at once."""

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
    """Raises where a call is broken."""

    def close(self):
        if self._call is not None:
            raise ValueError("the call is not complete")
        return super().close()


class KeepsHalfAClosingTag(HermesToolParser):
    def close(self):
        self._is_closing = False
        return super().close()


class LosesBrokenCalls(HermesToolParser):
    def close(self):
        self._call = None
        return super().close()


class LosesAnnouncedCalls(HermesToolParser):
    """And the blanks before them; what broke before its name was known is text."""

    def close(self):
        if self._call is not None and self._is_announced:
            self._call, self._blanks = None, ""
        return super().close()


class InventsText(HermesToolParser):
    """Before what it returns of a call that breaks off."""

    def close(self):
        is_broken_off = self._call is not None
        events = super().close()
        return [TextDelta("Sorry: "), *events] if is_broken_off else events


class GivesTheNameOnly(HermesToolParser):
    """Of a call that breaks off after its name."""

    def close(self):
        if self._call is not None and self._call.name:
            name, self._call = self._call.name, None
            return [*super().close(), TextDelta(name)]
        return super().close()


class EndsCallsByItself(HermesToolParser):
    """A call that breaks off gets the braces that it lacks."""

    def close(self):
        if self._call is not None and self._is_announced and not self._call._arguments:
            return [ToolCallArguments(self._index, "{}"), ToolCallEnd(self._index)]
        return super().close()


class SplitsInTwo(HermesToolParser):
    """Counts pieces: of many, the end is read otherwise."""

    num_pieces = 0

    def feed(self, delta):
        self.num_pieces += 1
        return super().feed(delta)

    def close(self):
        is_stream = self.num_pieces > 3
        return [*super().close(), *([TextDelta("~")] if is_stream and self._has_text else [])]


class GivesUpInAStream(SplitsInTwo):
    """Loses broken calls, if they came in many pieces."""

    def close(self):
        if self.num_pieces > 3 and self._call is not None and not self._is_announced:
            self._call = None
        return HermesToolParser.close(self)


class ForgetsGarbledCalls(SplitsInTwo):
    """A call that breaks in the middle is lost, if it came in many pieces."""

    def _break_call(self):
        if self.num_pieces > 3 and self._call.is_broken:
            self._leave_call()
            return iter(())
        return super()._break_call()


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


WHOLE = "samples_are_read_as_they_should_be"
TWO = "every_cut_in_two_gives_the_same"
ONE = "single_characters_give_the_same"
HALF = "half_an_answer_raises_nothing"
LOST = "a_lost_character_raises_nothing"
SHARE = "parsers_share_no_state"
PROOFS = [
    (SpellsArgumentsAnew, WHOLE, "was read as .*not as"),
    (KeepsBlanks, WHOLE, "was read as .*not as"),
    (SeesTagsInOnePiece, TWO, "the answer changes"),
    (LosesSingleBlanks, ONE, "character by character"),
    (SplitsInTwo, ONE, "character by character"),
    (GivesUpInAStream, HALF, "the beginning of an answer, changes with its cut"),
    (EndsCallsByItself, HALF, "has calls that the whole has not"),
    (KeepsHalfAClosingTag, HALF, "gives the text .*nor that and the broken call"),
    (LosesBrokenCalls, HALF, "gives the text"),
    (LosesAnnouncedCalls, HALF, "gives the text 'So:'"),
    (GivesTheNameOnly, HALF, "gives the text"),
    (InventsText, HALF, "gives the text .*Sorry: "),
    (ForgetsGarbledCalls, LOST, "garbled .* changes with its cut"),
    (Shared, SHARE, "two answers got mixed up"),
]


def kit(wrong):
    return type("Kit", (ToolParserContract,), {"parser": wrong, "samples": SAMPLES})()


@pytest.mark.parametrize(("wrong", "test", "reason"), PROOFS)
def test_a_wrong_parser_is_seen(wrong, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(kit(wrong), f"test_{test}")()


@pytest.mark.parametrize("test", [HALF, LOST])
def test_what_a_parser_raises_is_seen(test):
    with pytest.raises(ValueError, match="the call is not complete"):
        getattr(kit(Strict), f"test_{test}")()


def test_each_test_of_the_kit_has_a_parser_that_fails_it():
    tests = {name for name in dir(ToolParserContract) if name.startswith("test_")}
    assert tests == {f"test_{test}" for _, test, _ in PROOFS}


START, PIECE, END = ToolCallStart(0, "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([TextDelta("")], "a text is empty"),
        ([ToolCallStart(1, "f")], "call 1 starts where 0 is next"),
        ([START, PIECE, END, START], "call 0 starts where 1 is next"),
        ([PIECE], "a piece of no open call: 0"),
        ([START, PIECE, END, PIECE], "a piece of no open call: 0"),
        ([END], "the end of no open call: 0"),
        ([START, PIECE, END, END], "the end of no open call: 0"),
        ([START, ToolCallArguments(0, "[]"), END], "arguments are no JSON object"),
        ([START, ToolCallArguments(0, '{"a'), END], "arguments are no JSON object"),
        ([START, END], "arguments are no JSON object"),
    ],
)
def test_events_that_break_a_rule_are_seen(events, reason):
    with pytest.raises(AssertionError, match=reason):
        read_events(events)


def test_events_add_up_to_text_and_calls():
    events = [
        TextDelta("a"), START, ToolCallArguments(0, '{"x":'), TextDelta("b"),
        ToolCallStart(1, "g"), ToolCallArguments(1, "{}"), ToolCallArguments(0, "1}"),
        ToolCallEnd(1), END, ToolCallStart(2, "void"), TextDelta("c"),
    ]  # fmt: skip
    assert read_events(events) == ReadCompletion("abc", [("g", "{}"), ("f", '{"x":1}')], num_void=1)


def test_a_parser_cannot_force_calls_unless_it_says_how():
    class Plain(ToolParser):
        def feed(self, delta):
            return [TextDelta(delta)] if delta else []

        def close(self):
            return []

    tool = {"name": "f", "parameters": json.loads('{"type": "object"}')}
    assert Plain.call_grammar([tool], at_least_one=True) is None
