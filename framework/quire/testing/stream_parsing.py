"""Shared part of the kits of parsers: every split of a stream gives the same result."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from quire.testing.expectation import expect
from quire.testing.parsing.fragments import fragments_of, gaps_in, marker_places
from quire.testing.parsing.hostile_texts import COMMON, HostileTexts
from quire.testing.parsing.parser_work import EndlessWorkError, is_linear, work_of
from quire.testing.parsing.splits import in_groups, of_length, pairs, random_cuts
from quire.testing.parsing.token_streams import token_streams

MAX_SAMPLE = 1_000  # characters of a sample of which every prefix is tried
NUM_REPEATS = 150  # of a fragment
NUM_NESTED = 1_500  # more than Python can recurse
NUM_PROSE = 1_000  # characters
SHORT_LENGTH = 400  # characters of the shorter text whose work is counted
MAX_LINES = 200_000  # of Python, for a text of a few hundred characters
PROSE = "The quick brown fox jumps over the lazy dog, and then it rests. "
DELTA_LENGTH = 4
BLANKS = (" ", "\r\n")
NUM_BLANKS = 30
FEW_BLANKS, MANY_BLANKS = 600, 2_400  # more than the longest header; more than any format has
BLANKS_LENGTH = 8  # of a delta of them


class ParserSample(Protocol):
    """A completion, and what its parser is expected to return."""

    @property
    def text(self) -> str:
        """Text that the model generated."""


Sample = TypeVar("Sample", bound=ParserSample)
Event = TypeVar("Event")
EventOut = TypeVar("EventOut", covariant=True)
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class GrowingText(Generic[Sample]):
    """A text, and one that is four times as long.

    Attributes:
        what: Description for messages.
        sample: Sample with which to make the parser.
        short: The text.
        long: The longer one.
        delta_length: Number of characters of a delta; None: it is parsed in one.
    """

    what: str
    sample: Sample
    short: str
    long: str
    delta_length: int | None = DELTA_LENGTH

    def deltas(self, text: str) -> list[str]:
        """Return the deltas of one of the texts."""
        return of_length(text, self.delta_length or len(text))


def grown(what: str, sample: Sample, text: str, *, is_whole: bool = False) -> GrowingText[Sample]:
    """Return a text that is repeated."""
    num = SHORT_LENGTH // max(1, len(text)) + 1
    what += ", in one delta" if is_whole else ""
    delta_length = None if is_whole else DELTA_LENGTH
    return GrowingText(what, sample, text * num, text * num * 4, delta_length)


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
        markers: Markers of the format, which tokenizers may have as tokens of their own; empty:
            what looks like one in the samples.
        num_random_texts: Number of hostile texts that are generated.
        num_random_splits: Number of random splits of each sample, and of each hostile text.
        seed: Number that the random texts and splits depend on.
    """

    samples: Sequence[Sample]
    markers: ClassVar[Sequence[str]] = ()
    num_random_texts: ClassVar[int] = 60
    num_random_splits: ClassVar[int] = 4
    seed: ClassVar[int] = 0

    @abstractmethod
    def new_parser(self, sample: Sample) -> StreamParser[Event]:
        """Return a parser for the completion of a sample."""

    @abstractmethod
    def joined(self, events: Iterable[Event]) -> Parsed:
        """Join the events of one completion, and check them."""

    @abstractmethod
    def is_expected(self, parsed: Parsed, sample: Sample) -> bool:
        """Return whether the whole completion of a sample was parsed as expected."""

    @abstractmethod
    def without_blanks(self, parsed: Parsed) -> object:
        """Return what was parsed, with no blanks in its text."""

    @abstractmethod
    def check_nothing_lost(self, sample: Sample, text: str) -> None:
        """Check that nothing of a text is lost, repeated or invented.

        Args:
            sample: Sample with which to make the parser.
            text: Any text, perhaps with words of `hostile_texts`.
        """

    @abstractmethod
    def shown(self, event: Event) -> str:
        """Return the text of an event, if it is text for the user."""

    def read(self, sample: Sample, pieces: Iterable[str]) -> Parsed:
        """Feed a text to a new parser, piece by piece, and join the events."""
        return self.joined(self.events_of(sample, [*pieces]))

    def events_of(self, sample: Sample, pieces: Sequence[str]) -> list[Event]:
        """Return the events of a text that comes in pieces.

        Raises:
            AssertionError: The parser raised an error.
        """
        parser = self.new_parser(sample)
        try:
            events = [event for piece in pieces for event in parser.feed(piece)]
            return [*events, *parser.close()]
        except Exception as error:
            raise AssertionError(
                f"a parser must not raise, but {error!r} was raised for the deltas {pieces}"
            ) from error

    def hostile_texts(self) -> Iterator[str]:
        """Yield random texts of the format's fragments."""
        texts = [sample.text for sample in self.samples if len(sample.text) <= MAX_SAMPLE]
        fragments = [*self.format_markers(), *fragments_of(texts)]
        return HostileTexts(texts, fragments, self.seed).first(self.num_random_texts)

    def format_markers(self) -> tuple[str, ...]:
        """Return the markers of the format, or what looks like them in the samples."""
        if self.markers:
            return tuple(self.markers)
        fragments = fragments_of(sample.text for sample in self.samples)
        return tuple(each for each in fragments if len(each) > 2 and not each[0].isalnum())[:40]

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
            self._check_splits(sample, sample.text, pairs(sample.text))

    def test_single_characters_give_the_same(self) -> None:
        """Compare a stream of single characters with one piece."""
        for sample in self.samples:
            self._read_both_ways(sample, sample.text)

    def test_random_cuts_give_the_same(self) -> None:
        """Compare splits at random places, empty deltas included, with one piece."""
        chance = random.Random(self.seed)
        for sample in self.samples:
            splits = (random_cuts(sample.text, chance) for _ in range(5 * self.num_random_splits))
            self._check_splits(sample, sample.text, splits)

    def test_cuts_between_tokens_give_the_same(self) -> None:
        """Compare deltas of one token, and of several tokens, with one piece."""
        chance = random.Random(self.seed)
        streams = token_streams(
            tuple(sample.text for sample in self.samples), self.format_markers()
        )
        for sample in self.samples:
            for stream in streams:
                deltas = stream.deltas(sample.text)
                splits = [deltas, in_groups(deltas, chance)]
                self._check_splits(sample, sample.text, splits, f"tokens {stream.name}: ")

    def test_a_truncated_completion_raises_nothing(self) -> None:
        """Parse every prefix: no error, and the same result for every split."""
        for sample in self._short_samples():
            for end in range(len(sample.text)):
                self._check_truncated(sample, sample.text[:end])

    def test_a_lost_character_raises_nothing(self) -> None:
        """Remove each character in turn: no error, and the same result for every split."""
        for sample in self._short_samples():
            for lost in range(len(sample.text)):
                self._read_both_ways(sample, sample.text[:lost] + sample.text[lost + 1 :])

    def test_a_marker_twice_raises_nothing(self) -> None:
        """Double each marker, bracket and word in turn, and leave it out."""
        for sample in self._short_samples():
            text = sample.text
            for start, end in marker_places(text):
                self._read_both_ways(sample, text[:end] + text[start:])
                self._read_both_ways(sample, text[:start] + text[end:])

    def test_blanks_at_each_place_lose_nothing(self) -> None:
        """Put blanks before and behind each marker, bracket and word: many do what one does."""
        for sample in self._short_samples():
            for place, _ in gaps_in(sample.text, self.markers):
                for blank in BLANKS:
                    self._check_blanks(sample, place, blank)

    def test_very_many_blanks_lose_nothing(self) -> None:
        """Put more blanks than a format has at each kind of place: the text is there again."""
        for sample, place in self._kinds_of_gaps():
            text = _with_blanks(sample.text, place, " " * MANY_BLANKS)
            self._check_splits(sample, text, [of_length(text, 7)])
            self.check_nothing_lost(sample, f"{text}\nwörd1x")

    def test_hostile_texts_lose_nothing(self) -> None:
        """Parse random texts of markers, fragments and words, whole and in random pieces."""
        chance = random.Random(self.seed)
        for number, text in enumerate(self.hostile_texts()):
            sample = self.samples[number % len(self.samples)]
            splits = [random_cuts(text, chance) for _ in range(self.num_random_splits)]
            self._check_splits(sample, text, splits)
            self.check_nothing_lost(sample, text)

    def test_repeated_fragments_raise_nothing(self) -> None:
        """Repeat each fragment of the format many times: nesting, long names, open markers."""
        sample = self.samples[0]
        begun = sample.text[: len(sample.text) // 2]
        for fragment in dict.fromkeys([*self.format_markers(), *fragments_of(self._texts())]):
            for start in ("", begun):
                self._check_repeated(sample, start, fragment * NUM_REPEATS)
        for nested in ("[", "{", "(", '{"a":'):
            self._check_repeated(sample, begun, nested * NUM_NESTED)

    def test_each_fragment_ends(self) -> None:
        """Parse each fragment alone and in front of a word: the parser comes to an end."""
        fragments = [*self.format_markers(), *fragments_of(self._texts()), *COMMON]
        for fragment in dict.fromkeys(fragments):
            sample = self.samples[0]
            for text in (fragment, f"{fragment}wörd1x {fragment}"):
                try:
                    work_of(partial(self._feed, sample, [text]), max_lines=MAX_LINES)
                except EndlessWorkError as error:
                    raise AssertionError(
                        f"the parser does not come to an end with {text!r}: {error}"
                    ) from error
                self.check_nothing_lost(sample, text)

    def test_text_is_passed_on(self) -> None:
        """Prose is returned before the completion ends."""
        for sample in self.samples[:1]:
            parser = self.new_parser(sample)
            text = (PROSE * NUM_PROSE)[:NUM_PROSE]
            events = [
                event for delta in of_length(text, DELTA_LENGTH) for event in parser.feed(delta)
            ]
            num_shown = sum(len(self.shown(event)) for event in events)
            expect(
                num_shown >= NUM_PROSE // 2,
                f"of {NUM_PROSE} characters of prose only {num_shown} were returned before the end",
            )

    def test_parsers_share_no_state(self) -> None:
        """Parse all completions in turns, each with its parser."""
        parsers = [self.new_parser(sample) for sample in self.samples]
        events: list[list[Event]] = [[] for _ in parsers]
        for i in range(max(map(len, self._texts()))):
            for parser, sample, seen in zip(parsers, self.samples, events, strict=True):
                seen += parser.feed(sample.text[i : i + 1])
        for parser, sample, seen in zip(parsers, self.samples, events, strict=True):
            seen += parser.close()
            expect(
                self.joined(seen) == self.read(sample, [sample.text]),
                f"the result of {sample.text!r} changes beside another parser: they share state",
            )

    def test_the_work_is_linear_in_the_text(self) -> None:
        """Count the work on texts and on ones that are four times as long; no clock is used."""
        for growing in self.growing_texts():
            small, large = (
                work_of(partial(self._feed, growing.sample, growing.deltas(text)))
                for text in (growing.short, growing.long)
            )
            expect(
                is_linear(small, large, len(growing.long)),
                f"the work grows faster than the text ({growing.what}): {small} for "
                f"{len(growing.short)} characters, {large} for {len(growing.long)}",
            )

    def growing_texts(self) -> Iterator[GrowingText[Sample]]:
        """Yield texts whose work is counted."""
        yield grown("prose", self.samples[0], PROSE)
        longest = max(self._short_samples(), key=lambda sample: len(sample.text))
        for is_whole in (False, True):
            yield grown("the longest sample, repeated", longest, longest.text, is_whole=is_whole)
        for sample, place in self._kinds_of_gaps():
            few, many = (
                _with_blanks(sample.text, place, " " * num) for num in (FEW_BLANKS, MANY_BLANKS)
            )
            what = f"blanks behind {sample.text[:place]!r}"
            yield GrowingText(what, sample, few, many, BLANKS_LENGTH)

    def _feed(self, sample: Sample, deltas: Iterable[str]) -> None:
        parser = self.new_parser(sample)
        for delta in deltas:
            parser.feed(delta)
        parser.close()

    def _check_repeated(self, sample: Sample, start: str, repeated: str) -> None:
        text = start + repeated
        self._check_splits(sample, text, [of_length(text, 7)])
        self.check_nothing_lost(sample, text)

    def _check_blanks(self, sample: Sample, place: int, blank: str) -> None:
        """Check that several blanks do what one does, if one changes nothing.

        A format may take one blank as its own and leave the others in the text.
        """
        one = self._read_both_ways(sample, _with_blanks(sample.text, place, blank))
        many = self._read_both_ways(sample, _with_blanks(sample.text, place, blank * NUM_BLANKS))
        expect(
            self.without_blanks(many) == self.without_blanks(one)
            or not self.is_expected(one, sample),
            f"behind {sample.text[:place]!r} one {blank!r} changes nothing, but {NUM_BLANKS} give "
            f"{many}",
        )
        self.check_nothing_lost(sample, _with_blanks(sample.text, place, blank) + "\nwörd1x")

    def _kinds_of_gaps(self) -> list[tuple[Sample, int]]:
        """Return a place in a sample for each pair of neighbouring fragments."""
        kinds: dict[str, tuple[Sample, int]] = {}
        for sample in self._short_samples():
            for place, kind in gaps_in(sample.text, self.markers):
                kinds.setdefault(kind, (sample, place))
        return [*kinds.values()]

    def _texts(self) -> list[str]:
        return [sample.text for sample in self.samples]

    def _short_samples(self) -> list[Sample]:
        return [sample for sample in self.samples if len(sample.text) <= MAX_SAMPLE]

    def _check_truncated(self, sample: Sample, prefix: str) -> None:
        self._read_both_ways(sample, prefix)

    def _check_splits(
        self, sample: Sample, text: str, splits: Iterable[Sequence[str]], what: str = ""
    ) -> None:
        """Compare splits of a text with the text in one piece."""
        whole = self.read(sample, [text])
        for split in splits:
            parsed = self.read(sample, split)
            expect(
                parsed == whole,
                f"{what}the result of {split} differs from that of one piece: {parsed}, {whole}",
            )

    def _read_both_ways(self, sample: Sample, text: str) -> Parsed:
        """Return the result of a text, which must not depend on the pieces."""
        parsed = self.read(sample, [text])
        expect(
            self.read(sample, text) == parsed,
            f"character by character, the result of {text!r} differs",
        )
        return parsed


def _with_blanks(text: str, place: int, blanks: str) -> str:
    return text[:place] + blanks + text[place:]
