"""Reasoning-parser conformance kit: every check rejects a broken parser, a right one passes."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.testing.reasoning import ReasoningParserContract, ReasoningSample

SAMPLES = (
    ReasoningSample("[hm]Yes.", reasoning="hm", content="Yes."),
    ReasoningSample("No.", reasoning="", content="No."),
    ReasoningSample("so]Yes.", reasoning="so", content="Yes.", prompt="Go: ["),
    ReasoningSample("[never closed", reasoning="never closed", content=""),
    ReasoningSample("[a]b]c[d", reasoning="a", content="b]c[d"),
)


class Brackets(ReasoningParser):
    """Reads reasoning in brackets at the start; the prompt may have opened them."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self.state = "thinking" if self.prompt_text.endswith("[") else "front"

    @property
    def is_thinking(self):
        return self.state == "thinking"

    def feed(self, delta):
        events = []
        for character in delta:
            if self.state == "front":
                self.state = "thinking" if character == "[" else "content"
                if character == "[":
                    continue
            if self.state == "thinking" and character == "]":
                self.state = "content"
            else:
                events.append(self.event(character))
        return events

    def event(self, character):
        return (ReasoningDelta if self.is_thinking else ContentDelta)(character)

    def close(self):
        return []


class TestBrackets(ReasoningParserContract):
    parser = Brackets
    samples: ClassVar[Sequence[ReasoningSample]] = SAMPLES


class ForgetsThePrompt(Brackets):
    def __init__(self, prompt_text=""):
        super().__init__()


class GivesNoText(Brackets):
    def close(self):
        return [ContentDelta("")]


class WholeOnly(Brackets):
    """Sees the closing bracket only in one piece with the text after it."""

    def feed(self, delta):
        if delta == "]" and self.is_thinking:
            return [ReasoningDelta("]")]
        return super().feed(delta)


class CutsOffPieces(Brackets):
    """Loses a character of a piece that is longer than one, unless it is the first."""

    has_begun = False

    def feed(self, delta):
        lost = self.has_begun and len(delta) > 1
        self.has_begun = True
        return super().feed(delta[lost:])


class GivesTheRestAtTheEnd(Brackets):
    """Emits content for truncated reasoning in a stream; whole samples are parsed right."""

    num_pieces = 0

    def feed(self, delta):
        self.num_pieces += 1
        return super().feed(delta)

    def close(self):
        if self.is_thinking and self.num_pieces == 2:
            return [ContentDelta("?")]
        return []


class NeverThinks(Brackets):
    @property
    def is_thinking(self):
        return False

    def event(self, character):
        return (ReasoningDelta if self.state == "thinking" else ContentDelta)(character)


class ThinksTooLong(NeverThinks):
    """Says that it is thinking until it is closed."""

    is_closed = False

    @property
    def is_thinking(self):
        return self.state != "front" and not self.is_closed

    def close(self):
        self.is_closed = True
        return []


class ThinksOnInOnePiece(NeverThinks):
    """Notices the end of the reasoning with the next piece."""

    was_thinking = False

    @property
    def is_thinking(self):
        return self.was_thinking

    def feed(self, delta):
        before = self.state
        events = super().feed(delta)
        is_one = len(delta) == 1
        self.was_thinking = self.state == "thinking" or (before == "front" and not is_one)
        return events


class SharesItsState(Brackets):
    states: ClassVar = {}

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self.states["now"] = self.state

    def feed(self, delta):
        self.state = self.states["now"]
        events = super().feed(delta)
        self.states["now"] = self.state
        return events


class FailsAtTheEnd(Brackets):
    """Raises if the reasoning is not closed."""

    def close(self):
        if self.is_thinking:
            raise ValueError("the bracket is open")
        return []


class DropsBrackets(Brackets):
    """Drops what follows a second opening bracket, up to a line break."""

    drops = False

    def feed(self, delta):
        events = []
        for character in delta:
            self.drops = (
                self.drops or (self.state == "content" and character == "[")
            ) and character != "\n"
            events += [] if self.drops else super().feed(character)
        return events


class Repeats(Brackets):
    def feed(self, delta):
        return [event for event in super().feed(delta) for _ in range(1 + (event.text == "x"))]


class Mixes(Brackets):
    """Returns the content at the end, its lines in reverse order."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self.lines = [[]]

    def feed(self, delta):
        events = super().feed(delta)
        for event in events:
            self.lines[-1] += [event] if isinstance(event, ContentDelta) else []
            if event.text == "\n":
                self.lines.append([])
        return [event for event in events if isinstance(event, ReasoningDelta)]

    def close(self):
        return [event for line in reversed(self.lines) for event in line]


class HoldsEverything(Brackets):
    text = ""

    def feed(self, delta):
        self.text += delta
        return []

    def close(self):
        return super().feed(self.text)


class LooksBack(Brackets):
    """Copies all that it was fed with every delta."""

    seen = ""

    def feed(self, delta):
        self.seen += delta
        return super().feed(delta)


class Recurses(Brackets):
    def feed(self, delta):
        self.depth(delta)
        return super().feed(delta)

    def depth(self, delta):
        return self.depth(delta.replace("[", "", 1)) if "[" in delta else delta


class TurnsForEver(Brackets):
    def feed(self, delta):
        while delta.startswith("'"):
            pass
        return super().feed(delta)


class FailsAtTwoBrackets(Brackets):
    def feed(self, delta):
        if "]]" in delta:
            raise KeyError("]]")
        return super().feed(delta)


class FailsAtTwentyBlanks(Brackets):
    num_blanks = 0

    def feed(self, delta):
        for character in delta:
            self.num_blanks = self.num_blanks + 1 if character == " " else 0
            if self.num_blanks == 20:
                raise KeyError(character)
        return super().feed(delta)


PROOFS = [
    (ForgetsThePrompt, "samples_are_parsed_as_expected", "'so]Yes.' was parsed as"),
    (GivesNoText, "samples_are_parsed_as_expected", "must not have an empty text"),
    (CutsOffPieces, "every_cut_in_two_gives_the_same", "differs from that of one piece"),
    (CutsOffPieces, "random_cuts_give_the_same", "differs from that of one piece"),
    (CutsOffPieces, "cuts_between_tokens_give_the_same", "tokens of .* differs from that of one"),
    (WholeOnly, "single_characters_give_the_same", "character by character"),
    (
        GivesTheRestAtTheEnd,
        "a_truncated_completion_raises_nothing",
        "character by character, the result of .* differs",
    ),
    (FailsAtTheEnd, "a_truncated_completion_raises_nothing", "must not raise, but ValueError"),
    (FailsAtTheEnd, "a_lost_character_raises_nothing", "must not raise, but ValueError"),
    (FailsAtTwoBrackets, "a_marker_twice_raises_nothing", "must not raise, but KeyError"),
    (FailsAtTwentyBlanks, "blanks_at_each_place_lose_nothing", "must not raise, but KeyError"),
    (FailsAtTwentyBlanks, "very_many_blanks_lose_nothing", "must not raise, but KeyError"),
    (DropsBrackets, "hostile_texts_lose_nothing", "are lost: it was parsed as"),
    (Repeats, "hostile_texts_lose_nothing", "has text that is not in"),
    (Mixes, "hostile_texts_lose_nothing", "out of order"),
    (Recurses, "repeated_fragments_raise_nothing", "must not raise, but RecursionError"),
    (TurnsForEver, "each_fragment_ends", "does not come to an end with"),
    (HoldsEverything, "text_is_passed_on", "only 0 were returned before the end"),
    (LooksBack, "the_work_is_linear_in_the_text", "grows faster than the text .prose"),
    (NeverThinks, "is_thinking_matches_the_text", "is_thinking is False, but .* of the reasoning"),
    (ThinksTooLong, "is_thinking_matches_the_text", "is_thinking is True, but .* of the content"),
    (ThinksOnInOnePiece, "the_state_does_not_depend_on_the_cut", "is_thinking is True in one"),
    (ThinksTooLong, "thinking_is_over_once_there_is_content", "is_thinking must be false after"),
    (SharesItsState, "parsers_share_no_state", "changes beside another parser"),
]


@pytest.mark.parametrize(("wrong", "test", "reason"), PROOFS)
def test_a_broken_parser_is_rejected(wrong, test, reason):
    kit = type("Kit", (ReasoningParserContract,), {"parser": wrong, "samples": SAMPLES})()
    with pytest.raises(AssertionError, match=reason):
        getattr(kit, f"test_{test}")()


def test_each_test_of_the_kit_has_a_parser_that_fails_it():
    tests = {name for name in dir(ReasoningParserContract) if name.startswith("test_")}
    assert tests == {f"test_{test}" for _, test, _ in PROOFS}
