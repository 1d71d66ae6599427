"""The conformance kit of reasoning parsers: a stream cut anywhere is the same answer.

    from quire.testing.reasoning import ReasoningParserContract, ReasoningSample

    class TestAcme(ReasoningParserContract):
        parser = AcmeParser
        samples = (ReasoningSample("[hm]Yes.", reasoning="hm", content="Yes."),)

pytest collects the tests of the contract with the class.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quire.interfaces.reasoning import ReasoningDelta, ReasoningEvent, ReasoningParser


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    reasoning: str
    content: str


@dataclass(frozen=True, slots=True)
class ReasoningSample:
    """An answer, and what a parser must find in it.

    Attributes:
        text: What the model wrote.
        reasoning: Its thinking.
        content: Its answer.
        prompt: The rendered prompt before it, or its end.
    """

    text: str
    reasoning: str
    content: str
    prompt: str = ""


class ReasoningParserContract:
    """Inherit from it, name the parser and give samples; pytest does the rest.

    Attributes:
        parser: The class under test.
        samples: Answers with and without thinking, and with prompts that open it.
    """

    parser: ClassVar[type[ReasoningParser]]
    samples: ClassVar[Sequence[ReasoningSample]]

    def read(self, sample: ReasoningSample, pieces: Iterable[str]) -> _Sides:
        """Feed an answer to a fresh parser, piece by piece."""
        parser = self.parser(sample.prompt)
        events = [event for piece in pieces for event in parser.feed(piece)]
        return _joined([*events, *parser.close()])

    def test_samples_are_read_as_they_should_be(self) -> None:
        """Whole answers give the thinking and the content that the samples name."""
        for sample in self.samples:
            sides = self.read(sample, [sample.text])
            wanted = _Sides(reasoning=sample.reasoning, content=sample.content)
            _expect(sides == wanted, f"{sample.text!r} was read as {sides}, not as {wanted}")

    def test_every_cut_in_two_gives_the_same(self) -> None:
        """Streaming cannot be told from reading the whole."""
        for sample in self.samples:
            whole = self.read(sample, [sample.text])
            for cut in range(1, len(sample.text)):
                parts = [sample.text[:cut], sample.text[cut:]]
                _expect(self.read(sample, parts) == whole, f"cut as {parts}, the answer changes")

    def test_single_characters_give_the_same(self) -> None:
        """Nor can the finest stream."""
        for sample in self.samples:
            _expect(
                self.read(sample, sample.text) == self.read(sample, [sample.text]),
                f"character by character, {sample.text!r} changes",
            )

    def test_every_beginning_can_be_the_end(self) -> None:
        """An answer that is cut off raises nothing, and reads the same at every cut."""
        for sample in self.samples:
            for end in range(len(sample.text)):
                text = sample.text[:end]
                _expect(
                    self.read(sample, text) == self.read(sample, [text]),
                    f"{text!r}, the beginning of an answer, changes with its cut",
                )

    def test_the_state_tells_whose_text_comes(self) -> None:
        """`is_thinking` before and behind a character: grammars wait while it is true."""
        for sample in self.samples:
            parser = self.parser(sample.prompt)
            for end, character in enumerate(sample.text, 1):
                before = parser.is_thinking
                events = parser.feed(character)
                if before is not parser.is_thinking:
                    continue
                kinds = {isinstance(event, ReasoningDelta) for event in events}
                _expect(
                    kinds <= {before},
                    f"at the end of {sample.text[:end]!r} is_thinking is {before}, and text of the "
                    f"{'content' if before else 'thinking'} comes",
                )

    def test_the_state_does_not_depend_on_the_cut(self) -> None:
        """A grammar begins at the same character, however the answer comes."""
        for sample in self.samples:
            by_characters = self.parser(sample.prompt)
            for end in range(1, len(sample.text) + 1):
                by_characters.feed(sample.text[end - 1])
                whole = self.parser(sample.prompt)
                whole.feed(sample.text[:end])
                _expect(
                    whole.is_thinking is by_characters.is_thinking,
                    f"after {sample.text[:end]!r} is_thinking is {whole.is_thinking} in one piece, "
                    f"and {by_characters.is_thinking} character by character",
                )

    def test_no_grammar_waits_for_ever(self) -> None:
        """Once there is content, the parser says that the thinking is over."""
        for sample in self.samples:
            parser = self.parser(sample.prompt)
            parser.feed(sample.text)
            if sample.content:
                _expect(not parser.is_thinking, f"{sample.text!r} leaves the thinking open")

    def test_parsers_share_no_state(self) -> None:
        """Two answers read in turns do not mix."""
        pair = (self.samples[0], self.samples[-1])
        parsers = [self.parser(sample.prompt) for sample in pair]
        events: list[list[ReasoningEvent]] = [[], []]
        for i in range(max(len(sample.text) for sample in pair)):
            for parser, sample, seen in zip(parsers, pair, events, strict=True):
                seen += parser.feed(sample.text[i : i + 1])
        for parser, sample, seen in zip(parsers, pair, events, strict=True):
            seen += parser.close()
            _expect(
                _joined(seen) == self.read(sample, [sample.text]),
                f"{sample.text!r} changes when another answer is read at the same time",
            )


def _joined(events: Iterable[ReasoningEvent]) -> _Sides:
    sides = {True: "", False: ""}
    for event in events:
        _expect(bool(event.text), "an event has no text")
        sides[isinstance(event, ReasoningDelta)] += event.text
    return _Sides(reasoning=sides[True], content=sides[False])


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)
