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

from quire.interfaces.reasoning import ReasoningDelta, ReasoningParser


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
        events += parser.close()
        _expect(all(event.text for event in events), "an event has no text")
        thoughts = [event.text for event in events if isinstance(event, ReasoningDelta)]
        others = [event.text for event in events if not isinstance(event, ReasoningDelta)]
        return _Sides(reasoning="".join(thoughts), content="".join(others))

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
                    f"{text!r} changes with its cut",
                )

    def test_no_grammar_waits_for_ever(self) -> None:
        """Once there is content, the parser says that the thinking is over."""
        for sample in self.samples:
            parser = self.parser(sample.prompt)
            parser.feed(sample.text)
            if sample.content:
                _expect(not parser.is_thinking, f"{sample.text!r} leaves the thinking open")


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)
