"""Conformance kit of tool-call parsers: every split of a stream gives the same result.

    from quire.testing.tool_parsing import ToolParserContract, ToolSample

    class TestAcme(ToolParserContract):
        parser = AcmeToolParser
        samples = (ToolSample("[find(Oslo)]", "", (("find", '{"city": "Oslo"}'),)),)

pytest collects the inherited tests.
"""

import json
from collections.abc import Iterable
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
from quire.testing.expectation import expect
from quire.testing.stream_parsing import StreamParserContract


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
                expect(bool(text), "a TextDelta must not be empty")
                result.content += text
            case ToolCallStart(index, name):
                expect(
                    index == len(names),
                    f"a ToolCallStart must have index {len(names)}, got {index}",
                )
                names[index], pieces[index] = name, []
            case ToolCallArguments(index, piece):
                expect(
                    index in names and index not in ended,
                    f"ToolCallArguments for call {index}, which is not open",
                )
                pieces[index].append(piece)
            case ToolCallEnd(index):
                expect(
                    index in names and index not in ended,
                    f"ToolCallEnd for call {index}, which is not open",
                )
                ended.add(index)
                arguments = "".join(pieces[index])
                expect(_is_object(arguments), f"arguments must be a JSON object, got {arguments}")
                result.calls.append((names[index], arguments))
    result.num_unfinished = len(names) - len(ended)
    return result


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


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


class ToolParserContract(StreamParserContract[ToolSample, ToolEvent, ReadCompletion]):
    """Tests that a tool-call parser must pass; subclass it and set the parser and samples.

    Attributes:
        parser: Parser class under test.
        samples: Completions with and without calls; include several calls, nested arguments,
            escapes, and the markers of the format inside strings.
    """

    parser: ClassVar[type[ToolParser]]

    def new_parser(self, sample: ToolSample) -> ToolParser:
        """Return a parser, which knows nothing of the request."""
        del sample
        return self.parser()

    def joined(self, events: Iterable[ToolEvent]) -> ReadCompletion:
        """Join the events of one completion, and check their order."""
        return read_events(events)

    def is_expected(self, parsed: ReadCompletion, sample: ToolSample) -> bool:
        """Return whether the content and the calls are those of the sample."""
        return (parsed.content, tuple(parsed.calls)) == (sample.content, sample.calls)

    def test_a_lost_character_raises_nothing(self) -> None:
        """Remove each character in turn: no error, and the same result for every split."""
        for sample in self.samples:
            for lost in range(len(sample.text)):
                self._read_both_ways(sample, sample.text[:lost] + sample.text[lost + 1 :])

    def _check_truncated(self, sample: ToolSample, prefix: str) -> None:
        """Check that the result of a prefix is part of the whole result."""
        result = self._read_both_ways(sample, prefix)
        expect(
            tuple(result.calls) == sample.calls[: len(result.calls)],
            f"the prefix {prefix!r} has calls that the whole has not: {result.calls}",
        )
        expect(
            _is_truncated_text_of(result, prefix, sample),
            f"the prefix {prefix!r} gives the content {result.content!r}, which must be a "
            f"prefix of {sample.content!r}, followed by the text of the unfinished call if "
            "there is one",
        )
