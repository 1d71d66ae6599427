"""Conformance kit of reasoning parsers: every split of a stream gives the same result.

    from quire.testing.reasoning import ReasoningParserContract, ReasoningSample

    class TestAcme(ReasoningParserContract):
        parser = AcmeParser
        samples = (ReasoningSample("[hm]Yes.", reasoning="hm", content="Yes."),)

pytest collects the inherited tests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quire.interfaces.reasoning import ReasoningDelta, ReasoningEvent, ReasoningParser


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedText:
    reasoning: str
    content: str


@dataclass(frozen=True, slots=True)
class ReasoningSample:
    """A completion, and its expected reasoning and content.

    Attributes:
        text: Text that the model generated.
        reasoning: Expected reasoning.
        content: Expected content.
        prompt: Rendered prompt before the completion, or the end of it.
    """

    text: str
    reasoning: str
    content: str
    prompt: str = ""


class ReasoningParserContract:
    """Tests that a reasoning parser must pass; subclass it and set the parser and samples.

    Attributes:
        parser: Parser class under test.
        samples: Completions with and without reasoning, and with prompts that open it.
    """

    parser: ClassVar[type[ReasoningParser]]
    samples: ClassVar[Sequence[ReasoningSample]]

    def read(self, sample: ReasoningSample, pieces: Iterable[str]) -> _ParsedText:
        """Feed a completion to a new parser, piece by piece, and join the events."""
        parser = self.parser(sample.prompt)
        events = [event for piece in pieces for event in parser.feed(piece)]
        return _joined([*events, *parser.close()])

    def test_samples_are_parsed_as_expected(self) -> None:
        """Parse whole completions and compare the reasoning and the content with the samples."""
        for sample in self.samples:
            parsed = self.read(sample, [sample.text])
            expected = _ParsedText(reasoning=sample.reasoning, content=sample.content)
            _expect(
                parsed == expected, f"{sample.text!r} was parsed as {parsed}, expected {expected}"
            )

    def test_every_cut_in_two_gives_the_same(self) -> None:
        """Compare every split in two with the whole completion in one piece."""
        for sample in self.samples:
            whole = self.read(sample, [sample.text])
            for cut in range(1, len(sample.text)):
                parts = [sample.text[:cut], sample.text[cut:]]
                _expect(
                    self.read(sample, parts) == whole,
                    f"the result of {parts} differs from that of one piece",
                )

    def test_single_characters_give_the_same(self) -> None:
        """Compare a stream of single characters with one piece."""
        for sample in self.samples:
            _expect(
                self.read(sample, sample.text) == self.read(sample, [sample.text]),
                f"character by character, the result of {sample.text!r} differs",
            )

    def test_a_truncated_completion_raises_nothing(self) -> None:
        """Parse every prefix: no error, and the same result for every split."""
        for sample in self.samples:
            for end in range(len(sample.text)):
                text = sample.text[:end]
                _expect(
                    self.read(sample, text) == self.read(sample, [text]),
                    f"character by character, the result of the prefix {text!r} differs",
                )

    def test_is_thinking_matches_the_text(self) -> None:
        """Compare `is_thinking` with events of each character; grammars wait while it is true."""
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
                    f"at the end of {sample.text[:end]!r} is_thinking is {before}, but the event "
                    f"is of the {'content' if before else 'reasoning'}",
                )

    def test_the_state_does_not_depend_on_the_cut(self) -> None:
        """`is_thinking` changes at the same character for every split."""
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

    def test_thinking_is_over_once_there_is_content(self) -> None:
        """`is_thinking` is false once there is content."""
        for sample in self.samples:
            parser = self.parser(sample.prompt)
            parser.feed(sample.text)
            if sample.content:
                _expect(not parser.is_thinking, f"is_thinking must be false after {sample.text!r}")

    def test_parsers_share_no_state(self) -> None:
        """Parse two completions in turns with two parsers."""
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
                f"the result of {sample.text!r} changes beside another parser: they share state",
            )


def _joined(events: Iterable[ReasoningEvent]) -> _ParsedText:
    texts = {True: "", False: ""}
    for event in events:
        _expect(bool(event.text), "an event must not have an empty text")
        texts[isinstance(event, ReasoningDelta)] += event.text
    return _ParsedText(reasoning=texts[True], content=texts[False])


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)
