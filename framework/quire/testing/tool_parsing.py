"""The conformance kit of tool-call parsers: a stream cut anywhere is the same answer.

    from quire.testing.tool_parsing import ToolParserContract, ToolSample

    class TestAcme(ToolParserContract):
        parser = AcmeToolParser
        samples = (ToolSample("[find(Oslo)]", "", (("find", '{"city": "Oslo"}'),)),)

pytest collects the tests of the contract with the class.
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
    """An answer, and what a parser must find in it.

    Attributes:
        text: What the model wrote.
        content: What the user is to read.
        calls: Name and arguments of each call; the arguments are compared as text.
    """

    text: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class ReadCompletion:
    """What events add up to.

    Attributes:
        content: All texts, joined.
        calls: The calls that ended.
        num_void: Calls that began and did not end; their text is in the content.
    """

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    num_void: int = 0


def read_events(events: Iterable[ToolEvent]) -> ReadCompletion:
    """Join the events of one answer, and check their order.

    Raises:
        AssertionError: The events break the interface's rules; the message says which.
    """
    answer = ReadCompletion()
    names: dict[int, str] = {}
    pieces: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case TextDelta(text):
                _expect(bool(text), "a text is empty")
                answer.content += text
            case ToolCallStart(index, name):
                _expect(index == len(names), f"call {index} starts where {len(names)} is next")
                names[index], pieces[index] = name, []
            case ToolCallArguments(index, piece):
                _expect(index in names and index not in ended, f"a piece of no open call: {index}")
                pieces[index].append(piece)
            case ToolCallEnd(index):
                _expect(index in names and index not in ended, f"the end of no open call: {index}")
                ended.add(index)
                arguments = "".join(pieces[index])
                _expect(_is_object(arguments), f"arguments are no JSON object: {arguments}")
                answer.calls.append((names[index], arguments))
    answer.num_void = len(names) - len(ended)
    return answer


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)


def _is_text_of(answer: ReadCompletion, text: str, sample: ToolSample) -> bool:
    """Whether a broken-off answer says what the whole says, and then what is broken off.

    Once all calls of the whole have ended, nothing is broken off. A call that was announced and has
    no end is.
    """
    if len(answer.calls) == len(sample.calls):
        return sample.content.startswith(answer.content)
    content, num_broken_off = answer.content, 1 if answer.num_void else 0
    return any(
        sample.content.startswith(content[:start]) and text.endswith(content[start:])
        for start in range(len(content) - num_broken_off, -1, -1)
    )


class ToolParserContract:
    """Inherit from it, name the parser and give samples; pytest does the rest.

    Attributes:
        parser: The class under test.
        samples: Answers with and without calls; several calls, nested arguments, escapes, and the
            format's own markers inside strings should be among them.
    """

    parser: ClassVar[type[ToolParser]]
    samples: ClassVar[Sequence[ToolSample]]

    def read(self, pieces: Iterable[str]) -> ReadCompletion:
        """Feed an answer to a fresh parser, piece by piece."""
        return read_events(self.events(pieces))

    def events(self, pieces: Iterable[str]) -> Iterator[ToolEvent]:
        """Give the events of an answer."""
        parser = self.parser()
        for piece in pieces:
            yield from parser.feed(piece)
        yield from parser.close()

    def test_samples_are_read_as_they_should_be(self) -> None:
        """Whole answers give the content and the calls that the samples name."""
        for sample in self.samples:
            answer = self.read([sample.text])
            _expect(
                (answer.content, tuple(answer.calls)) == (sample.content, sample.calls),
                f"{sample.text!r} was read as {answer}, not as {sample}",
            )

    def test_every_cut_in_two_gives_the_same(self) -> None:
        """Streaming cannot be told from reading the whole."""
        for sample in self.samples:
            whole = self.read([sample.text])
            for cut in range(1, len(sample.text)):
                parts = [sample.text[:cut], sample.text[cut:]]
                _expect(self.read(parts) == whole, f"cut as {parts}, the answer changes")

    def test_single_characters_give_the_same(self) -> None:
        """Nor can the finest stream."""
        for sample in self.samples:
            _expect(
                self.read(sample.text) == self.read([sample.text]),
                f"character by character, {sample.text!r} changes",
            )

    def test_half_an_answer_raises_nothing(self) -> None:
        """Every beginning of an answer can be its end, and what it says is part of the whole."""
        for sample in self.samples:
            for end in range(len(sample.text)):
                beginning = sample.text[:end]
                answer = self.read([beginning])
                _expect(
                    self.read(beginning) == answer,
                    f"{beginning!r}, the beginning of an answer, changes with its cut",
                )
                _expect(
                    tuple(answer.calls) == sample.calls[: len(answer.calls)],
                    f"{beginning!r} has calls that the whole has not: {answer.calls}",
                )
                _expect(
                    _is_text_of(answer, beginning, sample),
                    f"{beginning!r}, the beginning of an answer, gives the text "
                    f"{answer.content!r}: neither the beginning of {sample.content!r}, nor that "
                    "and the broken call behind it",
                )

    def test_a_lost_character_raises_nothing(self) -> None:
        """What a model garbles is never an error, and the same at every cut."""
        for sample in self.samples:
            for lost in range(len(sample.text)):
                text = sample.text[:lost] + sample.text[lost + 1 :]
                _expect(
                    self.read(text) == self.read([text]), f"garbled {text!r} changes with its cut"
                )

    def test_parsers_share_no_state(self) -> None:
        """Two answers read in turns do not mix."""
        first, second = self.samples[0], self.samples[-1]
        parsers = [self.parser(), self.parser()]
        events: list[list[ToolEvent]] = [[], []]
        for i in range(max(len(first.text), len(second.text))):
            for parser, sample, seen in zip(parsers, (first, second), events, strict=True):
                seen += parser.feed(sample.text[i : i + 1])
        for parser, sample, seen in zip(parsers, (first, second), events, strict=True):
            seen += parser.close()
            _expect(read_events(seen) == self.read([sample.text]), "two answers got mixed up")
