"""Conformance kit of reasoning parsers: every split of a stream gives the same result.

    from quire.testing.reasoning import ReasoningParserContract, ReasoningSample

    class TestAcme(ReasoningParserContract):
        parser = AcmeParser
        samples = (ReasoningSample("[hm]Yes.", reasoning="hm", content="Yes."),)

pytest collects the inherited tests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from quire.interfaces.reasoning import ReasoningDelta, ReasoningEvent, ReasoningParser
from quire.testing.expectation import expect
from quire.testing.parsing.kept_words import check_order, is_subsequence, lost_words
from quire.testing.stream_parsing import StreamParserContract


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


class ReasoningParserContract(StreamParserContract[ReasoningSample, ReasoningEvent, _ParsedText]):
    """Tests that a reasoning parser must pass; subclass it and set the parser and samples.

    Attributes:
        parser: Parser class under test.
        samples: Completions with and without reasoning, and with prompts that open it.
    """

    parser: ClassVar[type[ReasoningParser]]

    def new_parser(self, sample: ReasoningSample) -> ReasoningParser:
        """Return a parser for the prompt of a sample."""
        return self.parser(sample.prompt)

    def joined(self, events: Iterable[ReasoningEvent]) -> _ParsedText:
        """Join the events of one completion."""
        texts = {True: "", False: ""}
        for event in events:
            expect(bool(event.text), "an event must not have an empty text")
            texts[isinstance(event, ReasoningDelta)] += event.text
        return _ParsedText(reasoning=texts[True], content=texts[False])

    def is_expected(self, parsed: _ParsedText, sample: ReasoningSample) -> bool:
        """Return whether the reasoning and the content are those of the sample."""
        return parsed == _ParsedText(reasoning=sample.reasoning, content=sample.content)

    def without_blanks(self, parsed: _ParsedText) -> object:
        """Return the reasoning and the content, with no blanks."""
        return "".join(parsed.reasoning.split()), "".join(parsed.content.split())

    def shown(self, event: ReasoningEvent) -> str:
        """Return the text of an event."""
        return event.text

    def check_nothing_lost(self, sample: ReasoningSample, text: str) -> None:
        """Check that every word is in the reasoning or in the content."""
        parsed = self.read(sample, text)
        for part in (parsed.reasoning, parsed.content):
            expect(
                is_subsequence(part, text),
                f"{part!r} has text that is not in {text!r}, or is out of order",
            )
            check_order(part, text)
        lost = lost_words(text, f"{parsed.reasoning} {parsed.content}")
        expect(not lost, f"{lost} of {text!r} are lost: it was parsed as {parsed}")

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
                expect(
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
                expect(
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
                expect(not parser.is_thinking, f"is_thinking must be false after {sample.text!r}")
