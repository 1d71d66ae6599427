"""Conformance kit of tool-call parsers: every split of a stream gives the same result.

    from quire.testing.tool_parsing import ToolParserContract, ToolSample

    class TestAcme(ToolParserContract):
        parser = AcmeToolParser
        samples = (ToolSample("[find(Oslo)]", "", (("find", '{"city": "Oslo"}'),)),)

pytest collects the inherited tests.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)


@dataclass(frozen=True, slots=True)
class ToolSample:
    """A completion, and its expected content and tool calls.

    Attributes:
        text: Text that the model generated.
        content: Content that the parser must return to the user.
        calls: Name and arguments of each call; arguments are compared as text.
    """

    text: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class ReadCompletion:
    """Result of joining the events of a completion.

    Attributes:
        content: All text deltas, joined.
        calls: Name and arguments of each finished call.
        num_unfinished: Number of calls that started and did not end; their text is in the content.
    """

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    num_unfinished: int = 0


def read_events(events: Iterable[ToolEvent]) -> ReadCompletion:
    """Join the events of one completion, and check their order.

    Raises:
        AssertionError: The events violate a rule of the interface; the message names it.
    """
    result = ReadCompletion()
    names: dict[int, str] = {}
    pieces: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case TextDelta(text):
                _expect(bool(text), "a TextDelta must not be empty")
                result.content += text
            case ToolCallStart(index, name):
                _expect(
                    index == len(names),
                    f"a ToolCallStart must have index {len(names)}, got {index}",
                )
                names[index], pieces[index] = name, []
            case ToolCallArguments(index, piece):
                _expect(
                    index in names and index not in ended,
                    f"ToolCallArguments for call {index}, which is not open",
                )
                pieces[index].append(piece)
            case ToolCallEnd(index):
                _expect(
                    index in names and index not in ended,
                    f"ToolCallEnd for call {index}, which is not open",
                )
                ended.add(index)
                arguments = "".join(pieces[index])
                _expect(_is_object(arguments), f"arguments must be a JSON object, got {arguments}")
                result.calls.append((names[index], arguments))
    result.num_unfinished = len(names) - len(ended)
    return result


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)


def _is_truncated_text_of(result: ReadCompletion, text: str, sample: ToolSample) -> bool:
    """Return whether the content is a prefix of the sample's, and then the unfinished call.

    After all calls of the sample have ended, there is no unfinished call. A call that started and
    did not end must be in the content, with one character at least.
    """
    if len(result.calls) == len(sample.calls):
        return sample.content.startswith(result.content)
    content, num_unfinished_characters = result.content, 1 if result.num_unfinished else 0
    return any(
        sample.content.startswith(content[:start]) and text.endswith(content[start:])
        for start in range(len(content) - num_unfinished_characters, -1, -1)
    )


class ToolParserContract:
    """Tests that a tool-call parser must pass; subclass it and set the parser and samples.

    Attributes:
        parser: Parser class under test.
        samples: Completions with and without calls; include several calls, nested arguments,
            escapes, and the markers of the format inside strings.
    """

    parser: ClassVar[type[ToolParser]]
    samples: ClassVar[Sequence[ToolSample]]

    def read(self, pieces: Iterable[str]) -> ReadCompletion:
        """Feed a completion to a new parser, piece by piece, and join the events."""
        return read_events(self.events(pieces))

    def events(self, pieces: Iterable[str]) -> Iterator[ToolEvent]:
        """Yield the events of a completion."""
        parser = self.parser()
        for piece in pieces:
            yield from parser.feed(piece)
        yield from parser.close()

    def test_samples_are_parsed_as_expected(self) -> None:
        """Parse whole completions and compare the content and the calls with the samples."""
        for sample in self.samples:
            result = self.read([sample.text])
            _expect(
                (result.content, tuple(result.calls)) == (sample.content, sample.calls),
                f"{sample.text!r} was parsed as {result}, expected {sample}",
            )

    def test_every_cut_in_two_gives_the_same(self) -> None:
        """Compare every split in two with the whole completion in one piece."""
        for sample in self.samples:
            whole = self.read([sample.text])
            for cut in range(1, len(sample.text)):
                parts = [sample.text[:cut], sample.text[cut:]]
                _expect(
                    self.read(parts) == whole,
                    f"the result of {parts} differs from that of one piece",
                )

    def test_single_characters_give_the_same(self) -> None:
        """Compare a stream of single characters with one piece."""
        for sample in self.samples:
            _expect(
                self.read(sample.text) == self.read([sample.text]),
                f"character by character, the result of {sample.text!r} differs",
            )

    def test_a_truncated_completion_raises_nothing(self) -> None:
        """Parse every prefix of a completion; its result must be part of the whole result."""
        for sample in self.samples:
            for end in range(len(sample.text)):
                prefix = sample.text[:end]
                result = self.read([prefix])
                _expect(
                    self.read(prefix) == result,
                    f"character by character, the result of the prefix {prefix!r} differs",
                )
                _expect(
                    tuple(result.calls) == sample.calls[: len(result.calls)],
                    f"the prefix {prefix!r} has calls that the whole has not: {result.calls}",
                )
                _expect(
                    _is_truncated_text_of(result, prefix, sample),
                    f"the prefix {prefix!r} gives the content {result.content!r}, which must be a "
                    f"prefix of {sample.content!r}, followed by the text of the unfinished call if "
                    "there is one",
                )

    def test_a_lost_character_raises_nothing(self) -> None:
        """Remove each character in turn: no error, and the same result for every split."""
        for sample in self.samples:
            for lost in range(len(sample.text)):
                text = sample.text[:lost] + sample.text[lost + 1 :]
                _expect(
                    self.read(text) == self.read([text]),
                    f"character by character, the result of {text!r} differs",
                )

    def test_parsers_share_no_state(self) -> None:
        """Parse two completions in turns with two parsers."""
        first, second = self.samples[0], self.samples[-1]
        parsers = [self.parser(), self.parser()]
        events: list[list[ToolEvent]] = [[], []]
        for i in range(max(len(first.text), len(second.text))):
            for parser, sample, seen in zip(parsers, (first, second), events, strict=True):
                seen += parser.feed(sample.text[i : i + 1])
        for parser, sample, seen in zip(parsers, (first, second), events, strict=True):
            seen += parser.close()
            _expect(
                read_events(seen) == self.read([sample.text]),
                "two parsers of one class share state",
            )
