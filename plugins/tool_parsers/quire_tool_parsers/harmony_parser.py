"""Tool calls of gpt-oss: the messages to functions in its series of messages (harmony).

    <|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{}<|call|>

A message to a function is a call, wherever the recipient stands in the header. A channel that the
text of a message names opens no header: that takes the end of the message, or `<|start|>`. All
other text is left as it is: the reasoning parser reads its channels. Behind a call there is no
reasoning, so there the headers of messages are dropped.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

from quire.interfaces.markers import Markers
from quire.interfaces.tool_parsing import (
    CallGrammar,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire_tool_parsers.arguments_reader import ArgumentsReader
from quire_tool_parsers.harmony_grammar import harmony_grammar
from quire_tool_parsers.json_scan import BLANKS

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|call|>", "<|end|>", "<|return|>")
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
MAX_HEADER = 512  # characters; a longer one is text
MAX_PART = 512  # characters; what is left of a part is copied with each step

_TEXT_ENDS = Markers((START, CHANNEL, *ENDS))
_HEADER_ENDS = Markers((START, MESSAGE, *ENDS))
_BODY_ENDS = Markers(ENDS)
_RECIPIENT = re.compile(r"\bto\s*=\s*(?P<name>[^\s<]+)")
_PREFIX = "functions."
_TO = "to="

Events = Iterator[ToolEvent]


class HarmonyParser(ToolParser):
    """Parser with four states: text, a header, the body of a call, and behind one.

    Args:
        names: Names of the request's tools, which are recipients without `functions.` as well.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)
        self._buffer = ""
        self._state: Callable[[bool], Events] = self._read_front
        self._needs_more = False
        self._raw: list[str] = []  # consumed since the last text or call: text, if no call comes
        self._reader: ArgumentsReader | None = None
        self._index = 0
        self._has_calls = False  # complete ones
        self._skips_blanks = False
        self._is_in_message = False  # behind its header

    @classmethod
    def for_tools(cls, tools: Sequence[dict[str, Any]]) -> Self:
        """Return a parser of a completion with calls of `tools`."""
        return cls([tool["name"] for tool in tools])

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return a grammar of one call of `tools`, behind thinking or not."""
        return harmony_grammar(tools, at_least_one=at_least_one)

    def feed(self, delta: str) -> list[ToolEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        events: list[ToolEvent] = []
        for start in range(0, len(delta), MAX_PART):
            self._buffer += delta[start : start + MAX_PART]
            events += self._run(is_last=False)
        return events

    def close(self) -> list[ToolEvent]:
        """Return what was held back; an unfinished call is text."""
        return [*self._run(is_last=True), *self._break_call()]

    def _run(self, *, is_last: bool) -> Events:
        self._needs_more = False
        while self._buffer and not self._needs_more:
            yield from self._state(is_last)

    def _read_front(self, is_last: bool) -> Events:
        """Read the start of the completion, whose header the prompt may have opened."""
        self._raw.append(self._take_blanks())
        text = self._buffer
        if not is_last and len(text) < len(_TO) and _TO.startswith(text):
            self._needs_more = True
        elif text.startswith(_TO):
            self._state = self._read_header
        else:
            self._state = self._read_text
            yield from self._emit(self._take_raw())

    def _read_text(self, is_last: bool) -> Events:
        """Read text up to the next header."""
        found = _TEXT_ENDS.find(self._buffer, is_last=is_last)
        if found is None:
            certain = len(self._buffer) if is_last else _TEXT_ENDS.num_certain(self._buffer)
            yield from self._emit(self._take(certain))
            self._needs_more = True
            return
        start, marker = found
        yield from self._emit(self._take(start))
        if marker in ENDS:
            end = self._take(len(marker))
            yield from self._emit("" if self._has_calls else end)
            self._is_in_message = False
        elif marker == CHANNEL and self._is_in_message:
            yield from self._emit(self._take(len(marker)))
        else:
            self._state = self._read_header

    def _read_header(self, is_last: bool) -> Events:
        """Read a header up to its end, which shows whether a call follows."""
        found = _HEADER_ENDS.find(self._buffer, 1, is_last=is_last)
        if found is None:
            if is_last or len(self._buffer) > MAX_HEADER:
                yield from self._leave_header()
            self._needs_more = not is_last and self._state == self._read_header
            return
        start, marker = found
        name = self._recipient(self._buffer[:start]) if marker == MESSAGE else None
        if name is not None:
            yield from self._begin_call(name, self._take(start + len(marker)))
        elif marker == MESSAGE:
            header = self._take_raw() + self._take(start + len(marker))
            yield from self._emit("" if self._has_calls else header)
            self._is_in_message, self._state = True, self._read_text
        else:
            yield from self._emit(self._take_raw() + self._take(start))
            self._state = self._read_header if marker == START else self._read_text

    def _leave_header(self) -> Events:
        """Go on with text, from behind the marker that has opened what is no header."""
        marker = _TEXT_ENDS.at_start(self._buffer)
        self._state = self._read_text
        yield from self._emit(self._take_raw() + self._take(len(marker or _TO)))

    def _recipient(self, header: str) -> str | None:
        """Return the function that a message is for; None if it is for none."""
        for found in _RECIPIENT.finditer(header):
            if (name := self._function(found["name"])) is not None:
                return name
        return None

    def _function(self, recipient: str) -> str | None:
        """Return the function that a recipient is; some models write its prefix several times."""
        name, names = recipient, [recipient]
        while name.startswith(_PREFIX) and name != _PREFIX:
            name = name.removeprefix(_PREFIX)
            names.append(name)
        known = [each for each in (*names[1:], recipient) if each in self._names]
        return next(iter(known), name if len(names) > 1 else None)

    def _begin_call(self, name: str, header: str) -> Events:
        self._raw.append(header)
        self._reader = ArgumentsReader()
        self._state = self._read_body
        yield ToolCallStart(self._index, name)

    def _read_body(self, is_last: bool) -> Events:
        """Read the arguments of a call; a message without a text has none."""
        reader = self._reader
        if reader is None:
            return
        if not reader.has_begun:
            self._raw.append(self._take_blanks())
            if not is_last and (not self._buffer or _BODY_ENDS.may_begin(self._buffer)):
                self._needs_more = True
                return
            if _BODY_ENDS.at_start(self._buffer):
                yield ToolCallArguments(self._index, "{}")
                yield from self._end_call()
                return
        self._raw.append(self._take(reader.read(self._buffer, is_last=is_last)))
        if piece := reader.take_arguments():
            yield ToolCallArguments(self._index, piece)
        if reader.is_complete:
            yield from self._end_call()
        elif reader.is_broken:
            yield from self._break_call()

    def _end_call(self) -> Events:
        yield ToolCallEnd(self._index)
        self._leave_call()
        self._raw.clear()
        self._has_calls = self._skips_blanks = True
        self._is_in_message, self._state = False, self._read_behind

    def _break_call(self) -> Events:
        """Yield the text of a call that is none."""
        if self._reader is not None:
            self._leave_call()
        yield from self._emit(self._take_raw())

    def _leave_call(self) -> None:
        self._reader = None
        self._index += 1
        self._state = self._read_text

    def _read_behind(self, is_last: bool) -> Events:
        """Read the end of a message behind its call."""
        del is_last
        self._take_blanks()
        if not self._buffer or _BODY_ENDS.may_begin(self._buffer):
            self._needs_more = True
            return
        self._take(len(_BODY_ENDS.at_start(self._buffer) or ""))
        self._state = self._read_text
        yield from ()

    def _emit(self, text: str) -> Events:
        if self._skips_blanks:
            text = text.lstrip(BLANKS)
        if text:
            self._skips_blanks = False
            yield TextDelta(text)

    def _take_raw(self) -> str:
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    def _take_blanks(self) -> str:
        return self._take(len(self._buffer) - len(self._buffer.lstrip(BLANKS)))

    def _take(self, length: int) -> str:
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken
