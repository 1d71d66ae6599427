"""The parser of all formats that are data: text, and calls as a `CallFormat` describes them.

A call starts when its name is complete, and its arguments are streamed. If the call breaks later,
it has no end event, and all of its text follows as text. So joined text and finished calls are the
same for every split of the stream. A call that is complete is valid even if its closing marker is
missing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from quire.interfaces.tool_parsing import (
    CallGrammar,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.call_grammar import call_grammar
from quire_tool_parsers.call_reader import CallReader
from quire_tool_parsers.family_table import capabilities_of
from quire_tool_parsers.format_file import read_format
from quire_tool_parsers.format_markers import begins_call, begins_unmarked, markers_of
from quire_tool_parsers.json_scan import BLANKS
from quire_tool_parsers.prompt_ids import prompt_id
from quire_tool_parsers.readers import readers_of
from quire_tool_parsers.text_writer import TextWriter
from quire_tool_parsers.writing_check import check_writing

Events = Iterator[ToolEvent]
MAX_PART = 512  # characters; what is left of a part is copied with each step
MAX_PREFACE = 256  # characters; text between the opener of a section and its first call


class FormatParser(ToolParser):
    """Parser with five states: text, between calls, inside a call, behind one, and a preface.

    A preface is text between the opener of a section and its first call. It waits for the call: if
    that is complete, the opener is a marker, and otherwise text.

    Attributes:
        format: Format of the calls.
    """

    format: ClassVar[CallFormat]

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        form = self.format
        self._types = ArgumentTypes(tools)
        self._markers, self._readers = markers_of(form), readers_of(form)
        self._num_closed = 0  # closers up to the last one that was read behind a call
        self._text = TextWriter()
        self._buffer = ""
        self._raw: list[str] = []  # consumed since the last text or call: text, if no call comes
        self._state: Callable[[bool], Events] = self._read_text
        self._needs_more = False
        self._is_in_section = False
        self._opener = ""  # marker that opened the section
        self._is_list = False
        self._has_calls = False  # in the section
        self._preface = ""
        self._may_be_bare = form.is_bare and not _has_only_marked(form, tools)  # at the front
        self._reader: CallReader | None = None
        self._index = 0
        self._is_announced = False

    @classmethod
    def from_file_text(cls, text: str) -> type[ToolParser]:
        """Return the parser of the format that a user's file describes.

        Raises:
            ValueError: The file describes none.
        """
        form = read_format(text)
        parser = cls.of_format("UserFormat", form)
        check_writing(form, parser)
        return parser

    @classmethod
    def of_format(cls, name: str, form: CallFormat) -> "type[FormatParser]":
        """Return a parser class of a format.

        Args:
            name: Name of the class.
            form: Format of the calls.
        """
        body = {
            "__doc__": f"Parser of {name} calls.",
            "format": form,
            "capabilities": capabilities_of(form),
        }
        return type(name, (FormatParser,), body)

    @classmethod
    def for_tools(cls, tools: Sequence[dict[str, Any]]) -> Self:
        """Return a parser of a completion with calls of `tools`."""
        return cls(tools)

    @classmethod
    def prompt_call_id(cls, call_id: str, name: str, number: int) -> str:
        """Return the id that the chat template gets for a call of an earlier turn."""
        return prompt_id(cls.format.call_ids, call_id, name, number)

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return a grammar of calls of `tools`: nothing else, or in otherwise free text.

        Raises:
            GrammarError: The parameters of a tool are not an object.
        """
        return call_grammar(cls.format, tools, at_least_one=at_least_one)

    def feed(self, delta: str) -> list[ToolEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        return [event for part in _parts(delta) for event in self._feed_part(part)]

    def close(self) -> list[ToolEvent]:
        """Return what was held back; an unfinished call is text."""
        return _joined([*self._run(is_last=True), *self._end(), *self._text.close()])

    def _feed_part(self, part: str) -> list[ToolEvent]:
        buffer, self._buffer = self._buffer, ""
        buffer += part  # in place, as nothing else refers to it: what is held is not copied
        self._buffer = buffer
        return _joined(self._run(is_last=False))

    def _run(self, *, is_last: bool) -> Events:
        self._needs_more = False
        while self._buffer and not self._needs_more:
            yield from self._state(is_last)

    def _end(self) -> Events:
        """Yield what an unfinished call or section has consumed, as text."""
        if self._reader is not None:
            self._reader.read("", is_last=True)
            if self._reader.is_complete:
                yield from self._emit(self._reader)
                return
            self._leave_call()
        is_behind_calls = self._has_calls and self._state != self._read_text
        yield from self._give_up()
        rest = self._take(len(self._buffer))
        if not (is_behind_calls and self._markers.gap_or_close.may_begin(rest.lstrip(BLANKS))):
            yield from self._text.write(rest)

    def _read_text(self, is_last: bool) -> Events:
        """Read text up to the next marker."""
        if self._may_be_bare:
            yield from self._text.write(self._take_blanks())
            if not self._buffer:
                return
            self._may_be_bare = False
            if begins_call(self.format, self._buffer[0]):
                self._open_section("")
                return
        around = self._markers
        markers = around.openers_or_close if self._is_in_section else around.openers
        found = markers.find(self._buffer, is_last=is_last)
        if found is None:
            certain = len(self._buffer) if is_last else markers.num_certain(self._buffer)
            yield from self._text.write(self._take(certain))
            self._needs_more = True
            return
        start, marker = found
        yield from self._text.write(self._take(start))
        if marker in self._markers.bare_openers:
            self._open_section("")
            return
        self._take(len(marker))
        self._open(marker)

    def _open(self, marker: str) -> None:
        form = self.format
        if self._is_in_section and self._closes(marker):
            self._is_in_section = False
            return
        self._open_section(marker)
        if marker in form.call_open:
            self._is_in_section = bool(form.section_close)
            self._begin_call()

    def _closes(self, marker: str) -> bool:
        """Whether a marker closes the section; a fence closes only what a fence has opened."""
        form = self.format
        is_of_opener = marker not in form.section_open or self._opener.startswith(marker)
        return marker in form.section_close and is_of_opener

    def _open_section(self, marker: str, before: str = "") -> None:
        self._raw = [before, marker]
        self._opener = marker
        self._is_in_section, self._has_calls, self._is_list = True, False, False
        self._state = self._read_gap

    def _read_gap(self, is_last: bool) -> Events:
        """Read what is before, between and behind the calls of a section."""
        del is_last
        form = self.format
        self._raw.append(self._take_blanks())
        rest = self._buffer
        gap = self._markers.gap
        if not rest or gap.may_begin(rest):
            self._needs_more = True
            return
        marker = gap.at_start(rest)
        if marker is not None and self._closes(marker):
            yield from self._close_section(marker)
        elif marker is not None and marker in form.call_open:
            self._raw.append(self._take(len(marker)))
            self._begin_call()
        elif marker is not None and marker in form.section_open:
            self._open_section(self._take(len(marker)), before="".join(self._raw))
        elif marker is not None and self._has_calls:
            self._raw.append(self._take(len(marker)))
        elif self._is_bracket(rest[0]):
            self._raw.append(self._take(1))
            if rest[0] == "]":
                self._raw.clear()
        elif begins_unmarked(form, rest[0]):
            self._begin_call()
        elif form.call_open and not (self._has_calls or self.is_in_reasoning):
            self._state = self._read_preface
        else:
            yield from self._give_up()

    def _read_preface(self, is_last: bool) -> Events:
        """Read the text before the first call of a section."""
        markers = self._markers.openers_or_close
        found = markers.find(self._buffer, is_last=is_last)
        if found is None and not is_last and markers.num_certain(self._buffer) <= MAX_PREFACE:
            self._needs_more = True
            return
        if found is None or found[0] > MAX_PREFACE or found[1] not in self.format.call_open:
            yield from self._give_up()
            return
        start, marker = found
        self._raw.append(self._take(start))
        self._preface = "".join(self._raw[2:])  # behind the opener
        self._raw.append(self._take(len(marker)))
        self._begin_call()

    def _is_bracket(self, character: str) -> bool:
        """Whether a character belongs to the list that calls may be in, or is between two calls."""
        if character == "[" and not self._is_list and not self._has_calls:
            self._is_list = True
            return True
        if character == "]" and self._is_list and self._has_calls:
            self._is_list = False
            return True
        return character in self._markers.strays and self._has_calls

    def _close_section(self, marker: str) -> Events:
        self._is_in_section = False
        self._raw.append(self._take(len(marker)))
        if self._has_calls:
            self._raw.clear()
        yield from self._give_up()

    def _give_up(self) -> Events:
        """Go on with text; what was consumed without a call is text."""
        raw, self._preface = "".join(self._raw), ""
        self._raw.clear()
        self._state = self._read_text
        if not self._has_calls:
            self._is_in_section = False
        yield from self._text.write(raw)

    def _begin_call(self) -> None:
        self._reader, self._is_announced = None, False
        self._state = self._read_call

    def _read_call(self, is_last: bool) -> Events:
        if self._reader is None:
            self._raw.append(self._take_blanks())
            if not self._buffer:
                return
            self._reader = self._readers.new(self._buffer[0], self._types)
            if self._reader is None:
                yield from self._give_up()
                return
        reader = self._reader
        had_name = reader.name is not None
        used = reader.read(self._buffer, is_last=is_last)
        self._raw.append(self._take(used))
        yield from self._emit(reader)
        has_new_name = reader.name is not None and not had_name
        self._needs_more = not (reader.is_complete or reader.is_broken or has_new_name)

    def _emit(self, reader: CallReader) -> Events:
        """Yield the events of what a reader has read."""
        if reader.name is not None and not self._is_announced:
            if not self._is_known(reader):
                reader.is_broken = True
            elif reader.is_complete or not self._preface:
                yield from self._take_preface()
                self._is_announced = True
                yield ToolCallStart(self._index, reader.name, reader.id)
        if self._is_announced and (piece := reader.take_arguments()):
            yield ToolCallArguments(self._index, piece)
        if reader.is_complete and self._is_announced:
            yield ToolCallEnd(self._index)
            self._leave_call()
            self._raw.clear()
            self._has_calls, self.is_in_reasoning = True, False
            self._text.end_call()
            self._num_closed = 0
            self._state = self._read_end
        elif reader.is_complete or reader.is_broken:
            self._leave_call()
            yield from self._give_up()

    def _take_preface(self) -> Events:
        """Yield the text before the first call of a section, whose opener is a marker."""
        if self._preface:
            self._text.leave_marker()
            yield from self._text.write(self._preface)
            self._preface = ""

    def _is_known(self, reader: CallReader) -> bool:
        """Whether a call counts; one that is like prose, or may be quoted, must be of a tool."""
        form = self.format
        may_be_prose = form.is_bare_anywhere or (form.is_bare and not self._opener)
        is_first = may_be_prose and not self._has_calls
        is_like_prose = is_first or form.is_name_a_call or self.is_in_reasoning
        return not is_like_prose or not self._types.names or reader.name in self._types.names

    def _leave_call(self) -> None:
        self._index += self._is_announced
        self._reader, self._is_announced = None, False

    def _read_end(self, is_last: bool) -> Events:
        """Read what closes a call: each of its closing markers once, in their order."""
        del is_last
        self._raw.append(self._take_blanks())
        closers = self._markers.closers[self._num_closed]
        if not self._buffer or closers.may_begin(self._buffer):
            self._needs_more = True
            return
        if (marker := closers.at_start(self._buffer)) is not None:
            self._take(len(marker))
            self._raw.clear()
            self._num_closed = self.format.call_close.index(marker) + 1
        elif self._is_in_section:
            self._state = self._read_gap
        else:
            yield from self._give_up()

    def _take_blanks(self) -> str:
        return self._take(len(self._buffer) - len(self._buffer.lstrip(BLANKS)))

    def _take(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken


def _has_only_marked(form: CallFormat, tools: Sequence[dict[str, Any]]) -> bool:
    """Whether a grammar constrains the calls in free text, and knows only those with markers."""
    writing = form.writing
    is_strict = any(tool.get("strict") for tool in tools)
    return is_strict and writing is not None and bool(writing.triggers) and not writing.is_at_start


def _parts(delta: str) -> Iterator[str]:
    """Yield a delta in parts, so that the work is linear in its length."""
    return (delta[start : start + MAX_PART] for start in range(0, len(delta), MAX_PART))


def _joined(events: Events | list[ToolEvent]) -> list[ToolEvent]:
    """Return the events with adjacent texts joined, and adjacent arguments of a call."""
    joined: list[ToolEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments):
            joined[-1] = ToolCallArguments(event.index, last.piece + event.piece)
        else:
            joined.append(event)
    return joined
