"""Reader of a call whose arguments stand between tags: `<parameter=city>Oslo</parameter>`.

The value of an argument is plain text; the types of the tool's schema, or an attribute of the tag,
say what it means. A string is written while it is read. The body may also be one JSON object.
"""

import re

from quire_tool_parsers.argument_types import STRING, ArgumentTypes
from quire_tool_parsers.call_reader import CallReader, ScanningReader
from quire_tool_parsers.json_scan import Characters, parse, read_container, skip_blanks
from quire_tool_parsers.json_writing import string_text
from quire_tool_parsers.tag_markers import TagMarkers
from quire_tool_parsers.value_end import ValueEnd
from quire_tool_parsers.value_writer import ValueWriter

MAX_NAME = 512  # characters of a tag

_QUOTED = re.compile(r"""(["'])(?P<name>.*?)\1(?P<attributes>.*)""", re.DOTALL)
_NAME = re.compile(r"""[^\s<>"']+""")
_END_OF_WORD = re.compile(r"\s")
_CONTAINERS = frozenset({"object", "array"})
_BREAK = re.compile(r"(?:\r?\n)?")


class TaggedReader(CallReader):
    """Reader of a name, and of arguments between tags.

    Args:
        markers: Markers within and behind the call; what closes it is not part of what this reads.
        types: Types of arguments.
    """

    def __init__(self, markers: TagMarkers, types: ArgumentTypes) -> None:
        super().__init__()
        self._tags = markers.tags
        self._types = types
        self._steps, self._openings = markers.steps, markers.openings
        self._value_end = ValueEnd(markers)
        self._value = ValueWriter(None)
        self._body: _Body | None = None
        self._written_name = ""
        self._attributes = ""
        self._keys = set[str]()
        self._is_repeated = False
        self._blanks: list[str] = []  # behind a key
        self._read_next = self._read_name

    def read(self, text: str, *, is_last: bool) -> int:
        """Read text; return the number of characters consumed."""
        consumed = 0
        had_name = self.name is not None
        while consumed < len(text) or is_last:
            place = self._read_next(text, consumed, is_last)
            if place is None:
                break
            consumed = place
            if self.is_complete or (self.name is not None and not had_name):
                break
        return consumed

    # Each of the following reads one part from a place on, and returns the place behind it; None:
    # it needs more text, or the call is broken.

    def _read_name(self, text: str, start: int, is_last: bool) -> int | None:
        found = self._named(text, start, is_last)
        if found is None:
            return None
        header, end = found
        quoted = _QUOTED.fullmatch(header)
        name = header if quoted is None else quoted["name"]
        if _NAME.fullmatch(name) is None or (quoted and quoted["attributes"].strip()):
            return self._break()
        self._written_name = name
        self._read_next = self._read_step
        return end

    def _named(self, text: str, start: int, is_last: bool) -> tuple[str, int] | None:
        """Return the name as it is written, and the place behind it and its marker."""
        if self._tags.name_close:
            return self._header(text, start, self._tags.name_close, is_last)
        start = skip_blanks(text, start)
        step = self._steps.find(text, start, is_last=is_last)
        blank = _END_OF_WORD.search(text, start)
        ends = ([] if step is None else [step[0]]) + ([] if blank is None else [blank.start()])
        end = min(ends, default=len(text))
        if not ends or end - start > MAX_NAME:
            self._wait(text, start, is_last)
            return None
        return text[start:end], end

    def _read_step(self, text: str, start: int, is_last: bool) -> int | None:
        """Read what is between two arguments: blanks, and the tag of the next one or the end."""
        place = skip_blanks(text, start)
        if not is_last and self._steps.may_begin(text, place):
            return place if place > start else None
        marker = self._steps.at_start(text, place)
        if marker is not None and marker not in self._tags.parameter_open:
            return self._finish(place)
        is_body = marker is None and self.name is None and text.startswith("{", place)
        if self._body is None and (marker is not None or is_body):
            self.name = self._written_name
            self._body = _Body() if is_body else None
            self._read_next = self._read_body if is_body else self._read_key
            return place + (0 if marker is None else len(marker))
        if is_last or place < len(text):
            return self._break()
        return place if place > start else None

    def _finish(self, place: int) -> int:
        self.name = self._written_name
        if self._body is None:
            self._arguments.append("}" if self._keys else "{}")
        self.is_complete = True
        return place

    def _read_body(self, text: str, start: int, is_last: bool) -> int | None:
        """Read arguments that are one JSON object."""
        body = self._body or _Body()
        num_read = body.read(text[start:], is_last=is_last)
        self._arguments.append(body.take_arguments())
        if body.is_broken:
            return self._break()
        if body.is_complete:
            self._read_next = self._read_step
        return start + num_read if num_read else None

    def _read_key(self, text: str, start: int, is_last: bool) -> int | None:
        found = self._header(text, start, self._tags.key_close, is_last)
        if found is None:
            return None
        header, end = found
        quoted = _QUOTED.fullmatch(header)
        key = header if quoted is None else quoted["name"]
        if not key:
            return self._break()
        self._is_repeated = key in self._keys
        self._write(f"{', ' if self._keys else '{'}{string_text(key)}: ")
        self._keys.add(key)
        self._attributes = "" if quoted is None else quoted["attributes"]
        self._value = self._writer(key)
        self._read_next = self._read_opening if self._tags.value_open else self._read_break
        return end

    def _writer(self, key: str) -> ValueWriter:
        types = self._types_of(key)
        may_be_container = types is None or bool(types & _CONTAINERS)
        self._value_end.begin(may_be_container=may_be_container)
        return ValueWriter(types)

    def _types_of(self, key: str) -> frozenset[str] | None:
        """Return the types of a value; None: it is JSON, or else a string."""
        tags = self._tags
        if tags.string_attribute and tags.string_attribute in self._attributes:
            return STRING
        if tags.other_attribute and tags.other_attribute in self._attributes:
            return None
        return self._types.of(self._written_name, key)

    def _read_opening(self, text: str, start: int, is_last: bool) -> int | None:
        """Read what may stand before a value: the tag of its key again, and its own tag."""
        place = skip_blanks(text, start)
        marker = self._openings.at_start(text, place)
        is_begun = place == len(text) or self._openings.may_begin(text, place)
        self._blanks.append(text[start:place])
        if marker is None and is_begun and not is_last:
            return place if place > start else None
        blanks = "".join(self._blanks)
        self._blanks.clear()
        if marker is None:
            self._begin_unmarked(blanks)
            return place
        if marker == self._tags.value_open:
            self._read_next = self._read_break
        return place + len(marker)

    def _begin_unmarked(self, blanks: str) -> None:
        """Begin a value whose tag is missing, with the blanks that are before it."""
        for _ in range(1 + self._tags.trims_newline):
            blanks = blanks[_end_of_break(blanks, 0) :]
        if blanks:
            self._write(self._value.add(blanks))
        self._read_next = self._read_value

    def _read_break(self, text: str, start: int, is_last: bool) -> int | None:
        """Read the line break before a value, if it does not belong to the value."""
        if not self._tags.trims_newline:
            place = start
        elif text[start : start + 2] in ("", "\r") and not is_last:
            return None
        else:
            place = _end_of_break(text, start)
        self._read_next = self._read_value
        return place

    def _read_value(self, text: str, start: int, is_last: bool) -> int | None:
        """Read a value up to its end, as far as it is certain."""
        end, behind = self._value_end.search(text, start, is_last)
        if end > start:
            self._write(self._value.add(text[start:end]))
        if behind is not None:
            self._write(self._value.end())
            self._read_next = self._read_step
            return behind
        if is_last:
            return self._break()
        return end if end > start else None

    def _write(self, piece: str) -> None:
        """Write a piece of JSON; of an argument that is there twice the first value counts."""
        if not self._is_repeated:
            self._arguments.append(piece)

    def _header(self, text: str, start: int, close: str, is_last: bool) -> tuple[str, int] | None:
        """Return the text up to a marker without its blanks, and the place behind the marker."""
        end = text.find(close, start, start + MAX_NAME)
        if end < 0:
            self._wait(text, start, is_last)
            return None
        return text[start:end].strip(), end + len(close)

    def _wait(self, text: str, start: int, is_last: bool) -> None:
        if is_last or len(text) - start > MAX_NAME:
            self._break()

    def _break(self) -> int | None:
        self.is_broken = True
        return None


class _Body(ScanningReader):
    """Reader of one JSON object."""

    def scan(self) -> Characters:
        """Read the object."""
        self.name = ""
        yield from read_container((yield), self._arguments)
        parse(self._arguments)


def _end_of_break(text: str, start: int) -> int:
    found = _BREAK.match(text, start)
    return start if found is None else found.end()
