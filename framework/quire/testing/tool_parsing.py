"""Conformance kit of tool-call parsers: every split of a stream gives the same result.

    from quire.testing.tool_parsing import ToolParserContract, ToolSample

    class TestAcme(ToolParserContract):
        parser = AcmeToolParser
        samples = (ToolSample("[find(Oslo)]", "", (("find", '{"city": "Oslo"}'),)),)

pytest collects the inherited tests.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NoReturn

from quire.frontend.chat.parsing.completion_parser import gather
from quire.frontend.chat.parsing.tool_stage import ToolStage
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire.testing.expectation import expect
from quire.testing.parsing.grammar_completions import TOOLS, GrammarCompletions
from quire.testing.parsing.kept_words import check_order, is_subsequence, lost_words
from quire.testing.stream_parsing import SHORT_LENGTH, GrowingText, StreamParserContract

# Blanks on both sides and inside, combined and joined characters, and line separators.
_BLANKS = re.compile(r"\s|\\[rnt]")  # as they are, or escaped in JSON
ODD_VALUE = "  e\u0301\u00a0\u00e9  \U0001f469\u200d\U0001f467 \u2028\u202e\ufeff\u6f22 \uff5c "


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
                _check_unicode(text)
                result.content += text
            case ToolCallStart(index, name):
                expect(
                    index == len(names),
                    f"a ToolCallStart must have index {len(names)}, got {index}",
                )
                expect(bool(name), "a ToolCallStart must have a name")
                _check_unicode(name)
                names[index], pieces[index] = name, []
            case ToolCallArguments(index, piece):
                expect(
                    index in names and index not in ended,
                    f"ToolCallArguments for call {index}, which is not open",
                )
                _check_unicode(piece)
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
    """Whether a text is a JSON object that every reader of JSON takes: no NaN, not very deep."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _check_unicode(text: str) -> None:
    expect(
        not any("\ud800" <= character <= "\udfff" for character in text),
        f"an event has a lone surrogate, which cannot be sent: {text!r}",
    )


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
        tools: Tools of the request, OpenAI's `function` objects, for formats that write values
            without types.
    """

    parser: ClassVar[type[ToolParser]]
    tools: ClassVar[Sequence[dict[str, Any]]] = ()

    def new_parser(self, sample: ToolSample) -> ToolParser:
        """Return a parser of a completion with calls of the tools."""
        del sample
        return self.parser.for_tools(self.tools)

    def joined(self, events: Iterable[ToolEvent]) -> ReadCompletion:
        """Join the events of one completion, and check their order."""
        return read_events(events)

    def is_expected(self, parsed: ReadCompletion, sample: ToolSample) -> bool:
        """Return whether the content and the calls are those of the sample."""
        return (parsed.content, tuple(parsed.calls)) == (sample.content, sample.calls)

    def without_blanks(self, parsed: ReadCompletion) -> object:
        """Return the content and the calls, with no blanks in them."""
        calls = [(name, _BLANKS.sub("", arguments)) for name, arguments in parsed.calls]
        return "".join(parsed.content.split()), calls

    def shown(self, event: ToolEvent) -> str:
        """Return the text of an event, if it is text for the user."""
        return event.text if isinstance(event, TextDelta) else ""

    def check_nothing_lost(self, sample: ToolSample, text: str) -> None:
        """Check that what is not in the content belongs to a complete call."""
        events, call_ends = self._read_with_ends(sample, text)
        parsed = self.joined(events)
        expect(
            is_subsequence(parsed.content, text),
            f"the content {parsed.content!r} has text that is not in {text!r}, or out of order",
        )
        check_order(parsed.content, text)
        if not parsed.calls:
            expect(
                parsed.content == text,
                f"without a complete call all text is content, but {text!r} gives "
                f"{parsed.content!r}",
            )
        lost = lost_words(text, parsed.content, call_ends)
        expect(not lost, f"{lost} of {text!r} are lost: the content is {parsed.content!r}")

    def test_text_beside_calls_is_kept(self) -> None:
        """Put words before, between and behind completions: all of them are in the content."""
        for first in self._short_samples():
            for second in (self.samples[0], self.samples[-1]):
                text = f"wörd1x\n{first.text}\nwörd2x {second.text} wörd3x"
                behind = f"{first.text}\nwörd4x"
                self._read_both_ways(first, text)
                for each in (text, behind):
                    self.check_nothing_lost(first, each)

    def test_calls_of_two_completions_are_all_read(self) -> None:
        """Put two completions one behind the other: what gives its calls there alone gives them.

        Formats that have calls at the front only need not read the second.
        """
        for first in self._short_samples():
            for second in (self.samples[0], self.samples[-1]):
                for between in ("\n", "\nwörd1x\n"):
                    self._check_behind(first, between, second)

    def test_arguments_keep_blanks_and_unicode(self) -> None:
        """Put blanks and characters of many scripts into string arguments: they come back."""
        num_checked = 0
        for sample in self.samples:
            for value in _replaceable(sample):
                num_checked += 1
                text = sample.text.replace(value, ODD_VALUE)
                calls = self._read_both_ways(sample, text).calls
                values = [json.loads(arguments) for _, arguments in calls]
                expected = [
                    json.loads(arguments.replace(value, ODD_VALUE)) for _, arguments in sample.calls
                ]
                expect(values == expected, f"{text!r} gives the arguments {values}, not {expected}")
        expect(
            num_checked > 0 or not any(sample.calls for sample in self.samples),
            "give a sample of a call with a string argument, two letters or more, that occurs once",
        )

    def test_forced_calls_are_read(self) -> None:
        """Parse completions that the parser's own grammar of calls allows, if it has one."""
        tools = self.tools or TOOLS
        grammar = self.parser.call_grammar(tools, at_least_one=True)
        if grammar is None:
            return
        completions = GrammarCompletions(grammar, self.seed)
        parser = partial(self.parser.for_tools, tools)
        for _ in range(self.num_random_texts // 2):
            text = completions.completion()
            parsed = _read_with(parser(), [text])
            names = [name for name, _ in parsed.calls]
            expect(
                names == completions.names and text.startswith(parsed.content.rstrip()),
                f"the grammar allows {text!r}, which was not read as calls of "
                f"{completions.names}: {parsed}",
            )
            found = [*_scalars([json.loads(arguments) for _, arguments in parsed.calls])]
            lost = [
                value
                for value in completions.values
                if value not in found and value not in parsed.content
            ]
            expect(not lost, f"{lost} of {text!r} are not in the arguments: {parsed}")
            expect(
                _read_with(parser(), text) == parsed,
                f"character by character, the result of {text!r} differs",
            )

    def growing_texts(self) -> Iterator[GrowingText[ToolSample]]:
        """Yield the texts of all parsers, and calls with a long argument, closed and open."""
        yield from super().growing_texts()
        found = ((sample, value) for sample in self.samples for value in _replaceable(sample))
        for sample, value in [*found][:1]:
            long, longer = (
                sample.text.replace(value, "lorem " * (num * SHORT_LENGTH // 6)) for num in (1, 4)
            )
            yield GrowingText("a long argument", sample, long, longer)
            start = sample.text.index(value)
            short, long = long[: start + SHORT_LENGTH], longer[: start + 4 * SHORT_LENGTH]
            yield GrowingText("a long argument that breaks off", sample, short, long)

    def _check_behind(self, first: ToolSample, between: str, second: ToolSample) -> None:
        """Check that the calls of two completions are read, if each is read beside a word."""
        alone = [self.read(first, [each.text]).calls for each in (first, second)]
        beside = [f"{first.text}\nwörd1x\n", f"wörd1x\n{second.text}"]
        if not all(alone) or alone != [self.read(first, [text]).calls for text in beside]:
            return
        text, expected = f"{first.text}{between}{second.text}", [*alone[0], *alone[1]]
        calls = self.read(first, [text]).calls
        expect(calls == expected, f"{text!r} has the calls {expected}, but gives {calls}")

    def _read_with_ends(self, sample: ToolSample, text: str) -> tuple[list[ToolEvent], list[int]]:
        """Parse a text by characters; return the events, and the places where calls ended."""
        parser = self.new_parser(sample)
        events: list[ToolEvent] = []
        ends: list[int] = []
        for place, delta in enumerate([*text, ""], 1):
            new = parser.feed(delta) if delta else parser.close()
            ends += [place for event in new if isinstance(event, ToolCallEnd)]
            events += new
        return events, [min(end, len(text)) for end in ends]

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
        if result.num_unfinished:
            self._check_cut(sample, prefix)

    def _check_cut(self, sample: ToolSample, prefix: str) -> None:
        """Check what a limit gives that ends the completion within a call: the call so far."""
        whole = _begun(self.events_of(sample, [sample.text]))
        for deltas in ([prefix], [*prefix]):
            stage = ToolStage(self.new_parser(sample))
            begun = [event for delta in deltas for event in stage.feed(delta)]
            events = [*begun, *stage.close(is_cut=True)]
            text, calls = gather(events).text, _begun(events)
            expect(
                sample.content.startswith(text) and _is_beginning(calls, whole),
                f"if a limit ends the completion behind {prefix!r}, there are the content {text!r} "
                f"and the calls {calls}, which must be the beginning of those of the whole; the "
                "text of an open call must come at the close, and no other text",
            )


def _begun(events: Iterable[object]) -> list[tuple[str, str]]:
    """Return the name and the arguments of each call that has begun."""
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallArguments):
            name, arguments = calls[event.index]
            calls[event.index] = (name, arguments + event.piece)
    return calls


def _is_beginning(calls: Sequence[tuple[str, str]], whole: Sequence[tuple[str, str]]) -> bool:
    """Whether calls, of which the last is open, are the beginning of others."""
    return len(calls) <= len(whole) and all(
        name == other and all_arguments.startswith(arguments)
        for (name, arguments), (other, all_arguments) in zip(calls, whole, strict=False)
    )


def _replaceable(sample: ToolSample) -> Iterator[str]:
    """Yield string arguments of a sample that occur once in it, as they are."""
    written = "".join(arguments for _, arguments in sample.calls)
    for value in _strings([json.loads(arguments) for _, arguments in sample.calls]):
        is_plain = len(value) > 1 and value.isalpha()
        if is_plain and sample.text.count(value) == written.count(value) == 1:
            yield value


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value; keys are none."""
    return (each for each in _scalars(value) if isinstance(each, str))


def _scalars(value: Any) -> Iterator[Any]:
    """Yield what is in a JSON value and is no list and no object."""
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _scalars(each)
    else:
        yield value


def _read_with(parser: ToolParser, deltas: Iterable[str]) -> ReadCompletion:
    events = [event for delta in deltas for event in parser.feed(delta)]
    return read_events([*events, *parser.close()])
