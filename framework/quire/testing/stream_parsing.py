"""Shared part of the kits of parsers: every split of a stream gives the same result."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from quire.testing.expectation import expect


class ParserSample(Protocol):
    """A completion, and what its parser is expected to return."""

    @property
    def text(self) -> str:
        """Text that the model generated."""


Sample = TypeVar("Sample", bound=ParserSample)
Event = TypeVar("Event")
EventOut = TypeVar("EventOut", covariant=True)
Parsed = TypeVar("Parsed")


class StreamParser(Protocol[EventOut]):
    """A parser that is fed piece by piece."""

    def feed(self, delta: str) -> Sequence[EventOut]:
        """Parse the next piece."""

    def close(self) -> Sequence[EventOut]:
        """Return the events of text that was held back."""


class StreamParserContract(ABC, Generic[Sample, Event, Parsed]):
    """Tests that a parser of any kind must pass.

    Attributes:
        samples: Completions to parse.
    """

    samples: Sequence[Sample]

    @abstractmethod
    def new_parser(self, sample: Sample) -> StreamParser[Event]:
        """Return a parser for the completion of a sample."""

    @abstractmethod
    def joined(self, events: Iterable[Event]) -> Parsed:
        """Join the events of one completion, and check them."""

    @abstractmethod
    def is_expected(self, parsed: Parsed, sample: Sample) -> bool:
        """Return whether the whole completion of a sample was parsed as expected."""

    def read(self, sample: Sample, pieces: Iterable[str]) -> Parsed:
        """Feed a text to a new parser, piece by piece, and join the events."""
        parser = self.new_parser(sample)
        events = [event for piece in pieces for event in parser.feed(piece)]
        return self.joined([*events, *parser.close()])

    def test_samples_are_parsed_as_expected(self) -> None:
        """Parse whole completions and compare the result with the samples."""
        for sample in self.samples:
            parsed = self.read(sample, [sample.text])
            expect(
                self.is_expected(parsed, sample),
                f"{sample.text!r} was parsed as {parsed}, expected {sample}",
            )

    def test_every_cut_in_two_gives_the_same(self) -> None:
        """Compare every split in two with the whole completion in one piece."""
        for sample in self.samples:
            whole = self.read(sample, [sample.text])
            for cut in range(1, len(sample.text)):
                parts = [sample.text[:cut], sample.text[cut:]]
                expect(
                    self.read(sample, parts) == whole,
                    f"the result of {parts} differs from that of one piece",
                )

    def test_single_characters_give_the_same(self) -> None:
        """Compare a stream of single characters with one piece."""
        for sample in self.samples:
            self._read_both_ways(sample, sample.text)

    def test_a_truncated_completion_raises_nothing(self) -> None:
        """Parse every prefix: no error, and the same result for every split."""
        for sample in self.samples:
            for end in range(len(sample.text)):
                self._check_truncated(sample, sample.text[:end])

    def test_parsers_share_no_state(self) -> None:
        """Parse two completions in turns with two parsers."""
        pair = (self.samples[0], self.samples[-1])
        parsers = [self.new_parser(sample) for sample in pair]
        events: list[list[Event]] = [[], []]
        for i in range(max(len(sample.text) for sample in pair)):
            for parser, sample, seen in zip(parsers, pair, events, strict=True):
                seen += parser.feed(sample.text[i : i + 1])
        for parser, sample, seen in zip(parsers, pair, events, strict=True):
            seen += parser.close()
            expect(
                self.joined(seen) == self.read(sample, [sample.text]),
                f"the result of {sample.text!r} changes beside another parser: they share state",
            )

    def _check_truncated(self, sample: Sample, prefix: str) -> None:
        self._read_both_ways(sample, prefix)

    def _read_both_ways(self, sample: Sample, text: str) -> Parsed:
        """Return the result of a text, which must not depend on the pieces."""
        parsed = self.read(sample, [text])
        expect(
            self.read(sample, text) == parsed,
            f"character by character, the result of {text!r} differs",
        )
        return parsed
