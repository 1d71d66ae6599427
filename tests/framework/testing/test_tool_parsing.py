"""Tool-parser conformance kit: every check rejects a broken parser, and a right one passes."""

import json
import unicodedata
from typing import ClassVar

import pytest

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
from quire.testing.tool_parsing import ReadCompletion, ToolParserContract, ToolSample, read_events
from quire_tool_parsers import families
from quire_tool_parsers.text_writer import TextWriter

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SAMPLES = (
    ToolSample(f"So:\n{CALL}", "So:", (("f", '{"a": 1}'),)),
    ToolSample("No <tool> and\n", "No <tool> and\n"),
    ToolSample(
        f'{CALL}\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call> Bye.',
        "Bye.",
        (("f", '{"a": 1}'), ("g", "{}")),
    ),
    ToolSample(
        '<tool_call>{"name": "h", "arguments": {"city": "Oslo"}}</tool_call>',
        "",
        (("h", '{"city": "Oslo"}'),),
    ),
)


class TestHermes(ToolParserContract):
    parser = families.hermes
    samples = SAMPLES


class SpellsArgumentsAnew(families.hermes):
    def feed(self, delta):
        return [self.respelled(event) for event in super().feed(delta)]

    def respelled(self, event):
        if isinstance(event, ToolCallArguments):
            return ToolCallArguments(event.index, event.piece.replace(": ", ":"))
        return event


class KeepsBlanks(families.hermes):
    """Returns the line break before a call as content, at the end of the completion."""

    def close(self):
        return [*super().close(), TextDelta("\n")]


class SeesTagsInOnePiece(families.hermes):
    """Emits part of a tag as text at once."""

    def feed(self, delta):
        events = super().feed(delta)
        if self._buffer and self._state == self._read_text:
            events.append(TextDelta(self._buffer))
            self._buffer = ""
        return events


class LosesSingleBlanks(families.hermes):
    def feed(self, delta):
        return super().feed("" if delta == " " else delta)


class Strict(families.hermes):
    """Raises on an unfinished call."""

    def close(self):
        if self._reader is not None:
            raise ValueError("the call is not complete")
        return super().close()


class KeepsAPartialClosingTag(families.hermes):
    def close(self):
        if self._state == self._read_gap:
            self._raw, self._state = [], self._read_text
        return super().close()


class LosesBrokenCalls(families.hermes):
    def close(self):
        self._reader, self._raw = None, []
        return super().close()


class LosesAnnouncedCalls(families.hermes):
    """Loses unfinished calls whose start was emitted, and the blanks before them."""

    def close(self):
        if self._reader is not None and self._is_announced:
            self._reader, self._raw, self._text = None, [], TextWriter()
        return super().close()


class InventsText(families.hermes):
    """Adds text before the text of an unfinished call."""

    def close(self):
        is_broken_off = self._reader is not None
        events = super().close()
        return [TextDelta("Sorry: "), *events] if is_broken_off else events


class BeginsCallsByPartOfTheirName(families.hermes):
    """Begins a call at the close whose name is not complete."""

    def close(self):
        is_in_name = self._reader is not None and "".join(self._raw).endswith('"name": "')
        events = super().close()
        return [ToolCallStart(self._index, "?"), *events] if is_in_name else events


class GivesTheNameOnly(families.hermes):
    """Returns only the name of a call that ends after it."""

    def close(self):
        if self._reader is not None and self._reader.name:
            name, self._reader, self._raw = self._reader.name, None, []
            return [*super().close(), TextDelta(name)]
        return super().close()


class EndsCallsByItself(families.hermes):
    """Completes an unfinished call with the missing braces."""

    def close(self):
        if self._reader is not None and self._is_announced and not self._reader._arguments:
            return [ToolCallArguments(self._index, "{}"), ToolCallEnd(self._index)]
        return super().close()


class SplitsInTwo(families.hermes):
    """Counts pieces, and parses the end of a long stream differently."""

    num_pieces = 0

    def feed(self, delta):
        self.num_pieces += 1
        return super().feed(delta)

    def close(self):
        is_stream = self.num_pieces > 3
        return [*super().close(), *([TextDelta("~")] if is_stream and self._text._has_text else [])]


class GivesUpInAStream(SplitsInTwo):
    """Loses unfinished calls that came in many pieces."""

    def close(self):
        if self.num_pieces > 3 and self._reader is not None and not self._is_announced:
            self._reader, self._raw = None, []
        return families.hermes.close(self)


class ForgetsGarbledCalls(SplitsInTwo):
    """Loses calls that break in the middle and came in many pieces."""

    def _give_up(self):
        if self.num_pieces > 3:
            self._raw.clear()
        return super()._give_up()


class ReadsOneCall(families.hermes):
    """Drops the calls behind the first one."""

    def feed(self, delta):
        return [event for event in super().feed(delta) if getattr(event, "index", 0) == 0]


class Shared(families.hermes):
    """Shares one text among all instances."""

    one: ClassVar = []

    def feed(self, delta):
        self.one.append(delta)
        return []

    def close(self):
        text = "".join(self.one)
        self.one.clear()
        parser = families.hermes()
        return parser.feed(text) + parser.close()


class DropsWhatIsNoCall(families.hermes):
    """Drops the text of a call that breaks off before its name."""

    def close(self):
        if self._state != self._read_text and not self._is_announced:
            self._reader, self._raw, self._buffer = None, [], ""
        return super().close()


class ByCharacters(families.hermes):
    """Reads characters, so that every split gives the same."""

    def feed(self, delta):
        return [event for character in delta for event in self.read_one(character)]

    def read_one(self, character):
        return super().feed(character)


class RepeatsText(ByCharacters):
    """Returns text behind a call twice."""

    def read_one(self, character):
        events = super().read_one(character)
        return [again for event in events for again in self.twice(event)]

    def twice(self, event):
        is_text = isinstance(event, TextDelta) and self._index > 0
        return [event, event] if is_text else [event]


class DropsTextBehindCalls(ByCharacters):
    has_ended = False

    def read_one(self, character):
        events = super().read_one(character)
        self.has_ended = self.has_ended or any(isinstance(each, ToolCallEnd) for each in events)
        if not self.has_ended:
            return events
        return [event for event in events if not isinstance(event, TextDelta)]


class TurnsTextRound(ByCharacters):
    """Returns lines in reverse order at the end."""

    def __init__(self, tools=()):
        super().__init__(tools)
        self.lines = [[]]

    def read_one(self, character):
        events = super().read_one(character)
        self.lines[-1] += [event for event in events if isinstance(event, TextDelta)]
        if character == "\n":
            self.lines.append([])
        return [event for event in events if not isinstance(event, TextDelta)]

    def close(self):
        return [event for line in reversed(self.lines) for event in line] + super().close()


class HoldsEverything(families.hermes):
    """Parses at the end."""

    def __init__(self, tools=()):
        super().__init__(tools)
        self.pieces = []

    def feed(self, delta):
        self.pieces.append(delta)
        return []

    def close(self):
        return [*super().feed("".join(self.pieces)), *super().close()]


class SearchesAgain(HoldsEverything):
    """Joins all that it was fed with every delta."""

    def feed(self, delta):
        events = families.hermes.feed(self, delta)
        self.pieces.append(delta)
        self.num_tags = "".join(self.pieces).count("<tool_call>")
        return events

    def close(self):
        return families.hermes.close(self)


class LoopsAgain(SearchesAgain):
    """Looks at all deltas with every delta."""

    def feed(self, delta):
        events = families.hermes.feed(self, delta)
        self.pieces.append(delta)
        self.num_tags = 0
        for piece in self.pieces:
            self.num_tags += "<" in piece
        return events


class SlicesTheRest(families.hermes):
    """Copies the rest of a delta after each character."""

    def feed(self, delta):
        events = []
        while delta:
            events += super().feed(delta[0])
            delta = delta[1:]
        return events


class NormalizesValues(ByCharacters):
    def read_one(self, character):
        return super().read_one(unicodedata.normalize("NFKC", character))


class TrimsValues(ByCharacters):
    """Makes one blank of several."""

    last = ""

    def read_one(self, character):
        is_second, self.last = character == self.last == " ", character
        return [] if is_second else super().read_one(character)


class Recurses(families.hermes):
    """Calls itself for each bracket of a delta."""

    def feed(self, delta):
        self.depth(delta)
        return super().feed(delta)

    def depth(self, delta):
        return self.depth(delta.replace("{", "", 1)) + 1 if "{" in delta else 0


class TurnsForEver(families.hermes):
    """Waits for a bracket at a quotation mark."""

    def feed(self, delta):
        while delta.startswith("'"):
            pass
        return super().feed(delta)


class ForcesOtherCalls(families.hermes):
    """Forces calls in a format that it does not read."""

    @classmethod
    def call_grammar(cls, tools, *, at_least_one):
        pieces = ('<call>{"name": "ping", "arguments": {}}</call>',)
        return CallGrammar((CallShape("ping", pieces),))


class LosesForcedValues(families.hermes):
    @classmethod
    def call_grammar(cls, tools, *, at_least_one):
        begin = '<tool_call>{"name": "ping", "arguments": {}, "more": '
        return CallGrammar((CallShape("ping", (begin, SchemaPiece(True), "}</tool_call>")),))


class TakesATagForOne(families.hermes):
    """Fails at two tags, one directly behind the other."""

    def feed(self, delta):
        if "<tool_call><tool_call>" in delta:
            raise KeyError(delta)
        return super().feed(delta)


class TiresOfBlanks(ByCharacters):
    """Takes the twentieth blank in a row for a letter."""

    num_blanks = 0

    def read_one(self, character):
        self.num_blanks = self.num_blanks + 1 if character.isspace() else 0
        return super().read_one("x" if self.num_blanks == 20 else character)


class LosesBlanks(ByCharacters):
    """Drops a blank behind a bracket, also in text."""

    last = ""

    def read_one(self, character):
        is_lost, self.last = character == " " and self.last == ">", character
        return [] if is_lost else super().read_one(character)


class CopiesBlanks(families.hermes):
    """Copies all blanks in a row with every delta."""

    blanks = ""

    def feed(self, delta):
        self.blanks = f"{self.blanks}{delta}" if delta.isspace() else ""
        return super().feed(delta)


WHOLE = "samples_are_parsed_as_expected"
TWO = "every_cut_in_two_gives_the_same"
ONE = "single_characters_give_the_same"
RANDOM = "random_cuts_give_the_same"
TOKENS = "cuts_between_tokens_give_the_same"
TRUNCATED = "a_truncated_completion_raises_nothing"
LOST = "a_lost_character_raises_nothing"
TWICE = "a_marker_twice_raises_nothing"
BLANKS = "blanks_at_each_place_lose_nothing"
MANY = "very_many_blanks_lose_nothing"
HOSTILE = "hostile_texts_lose_nothing"
REPEATED = "repeated_fragments_raise_nothing"
ENDS = "each_fragment_ends"
FORCED = "forced_calls_are_read"
BESIDE = "text_beside_calls_is_kept"
SEVERAL = "calls_of_two_completions_are_all_read"
VALUES = "arguments_keep_blanks_and_unicode"
PASSED_ON = "text_is_passed_on"
LINEAR = "the_work_is_linear_in_the_text"
SHARE = "parsers_share_no_state"
PROOFS = [
    (SpellsArgumentsAnew, WHOLE, "was parsed as .*expected"),
    (KeepsBlanks, WHOLE, "was parsed as .*expected"),
    (SeesTagsInOnePiece, TWO, "differs from that of one piece"),
    (SeesTagsInOnePiece, RANDOM, "differs from that of one piece"),
    (SeesTagsInOnePiece, TOKENS, "tokens of bytes: the result of .* differs"),
    (LosesSingleBlanks, ONE, "character by character"),
    (SplitsInTwo, ONE, "character by character"),
    (GivesUpInAStream, TRUNCATED, "character by character, the result of .* differs"),
    (EndsCallsByItself, TRUNCATED, "has calls that the whole has not"),
    (KeepsAPartialClosingTag, TRUNCATED, "gives the content .*the text of the unfinished call"),
    (LosesBrokenCalls, TRUNCATED, "gives the content"),
    (LosesAnnouncedCalls, TRUNCATED, "gives the content 'So:'"),
    (GivesTheNameOnly, TRUNCATED, "gives the content"),
    (BeginsCallsByPartOfTheirName, TRUNCATED, "if a limit ends .* the calls .*'[?]'"),
    (InventsText, TRUNCATED, "gives the content .*Sorry: "),
    (Strict, TRUNCATED, "must not raise, but ValueError.'the call is not complete'"),
    (ForgetsGarbledCalls, LOST, "character by character, the result of .* differs"),
    (Strict, LOST, "must not raise, but ValueError.'the call is not complete'"),
    (ForgetsGarbledCalls, TWICE, "character by character, the result of .* differs"),
    (TakesATagForOne, TWICE, "must not raise, but KeyError"),
    (TiresOfBlanks, BLANKS, "behind .* one ' ' changes nothing, but 30 give"),
    (LosesBlanks, BLANKS, "without a complete call all text is content"),
    (TiresOfBlanks, MANY, "has text that is not in"),
    (DropsWhatIsNoCall, HOSTILE, "without a complete call all text is content"),
    (InventsText, HOSTILE, "has text that is not in "),
    (RepeatsText, HOSTILE, "has text that is not in "),
    (DropsTextBehindCalls, HOSTILE, "are lost: the content is"),
    (Recurses, REPEATED, "must not raise, but RecursionError"),
    (DropsWhatIsNoCall, REPEATED, "without a complete call all text is content"),
    (TurnsForEver, ENDS, "does not come to an end with"),
    (ForcesOtherCalls, FORCED, "the grammar allows .*, which was not read as calls of"),
    (LosesForcedValues, FORCED, "'value 0x'.* are not in the arguments"),
    (DropsTextBehindCalls, BESIDE, "'wörd[34]x'.* are lost: the content is"),
    (RepeatsText, BESIDE, "has text that is not in .*or out of order"),
    (TurnsTextRound, BESIDE, "or out of order"),
    (ReadsOneCall, SEVERAL, r"has the calls \[.*\], but gives \[.'f'"),
    (NormalizesValues, VALUES, "gives the arguments"),
    (TrimsValues, VALUES, "gives the arguments"),
    (HoldsEverything, PASSED_ON, "only 0 were returned before the end"),
    (SearchesAgain, LINEAR, "grows faster than the text .prose.*num_copied_bytes"),
    (LoopsAgain, LINEAR, "grows faster than the text .prose"),
    (SlicesTheRest, LINEAR, "grows faster than the text .*in one delta"),
    (CopiesBlanks, LINEAR, "grows faster than the text .blanks behind"),
    (Shared, SHARE, "share state"),
]


def kit(wrong):
    return type("Kit", (ToolParserContract,), {"parser": wrong, "samples": SAMPLES})()


@pytest.mark.parametrize(("wrong", "test", "reason"), PROOFS)
def test_a_broken_parser_is_rejected(wrong, test, reason):
    with pytest.raises(AssertionError, match=reason):
        getattr(kit(wrong), f"test_{test}")()


@pytest.mark.parametrize("wrong", [SearchesAgain, LoopsAgain, SlicesTheRest, Recurses])
def test_what_a_parser_costs_is_seen_by_counting_only(wrong):
    right = kit(wrong)
    for sample in SAMPLES:
        assert right.is_expected(right.read(sample, sample.text), sample)


def test_a_sample_with_a_string_argument_is_asked_for():
    without = type(
        "Kit", (ToolParserContract,), {"parser": families.hermes, "samples": SAMPLES[:3]}
    )
    with pytest.raises(AssertionError, match="give a sample of a call with a string argument"):
        without().test_arguments_keep_blanks_and_unicode()


def test_tools_reach_the_parser():
    class NeedsTools(families.hermes):
        @classmethod
        def for_tools(cls, tools):
            assert [tool["name"] for tool in tools] == ["f"]
            return cls()

    asked = type(
        "Kit",
        (ToolParserContract,),
        {"parser": NeedsTools, "samples": SAMPLES, "tools": ({"name": "f"},)},
    )
    asked().test_samples_are_parsed_as_expected()


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
        ([START, ToolCallArguments(0, '{"a": NaN}'), END], "arguments must be a JSON object"),
        ([START, ToolCallArguments(0, '{"a":' * 9000), END], "arguments must be a JSON object"),
        ([ToolCallStart(0, "")], "must have a name"),
        ([ToolCallStart(0, "\ud800")], "lone surrogate"),
        ([TextDelta("a\udfff")], "lone surrogate"),
        ([START, ToolCallArguments(0, '{"\udc00')], "lone surrogate"),
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
