"""Reader of a call whose arguments stand between tags: `<parameter=city>Oslo</parameter>`.

The value of an argument is plain text; the types of the tool's schema, or an attribute of the tag,
say what it means. A string is written while it is read. A value ends at a closing tag behind which
the call goes on, so that such a tag within a value is text.
"""

import json
import re

from quire.interfaces.markers import Markers
from quire_tool_parsers.argument_types import ArgumentTypes, is_text, json_text
from quire_tool_parsers.call_format import Tags
from quire_tool_parsers.call_reader import CallReader
from quire_tool_parsers.json_scan import BLANKS

MAX_NAME = 512  # characters of a tag

_QUOTED = re.compile(
    r"""\s*(?:name\s*=\s*)?(["']?)(?P<name>[^"'\s<>]+)\1\s*(?P<attributes>.*)""", re.S
)


class TaggedReader(CallReader):
    """Reader of a name, and of arguments between tags.

    Args:
        tags: Markers within the call.
        ends: Markers that follow the last argument, and are not part of what this reads.
        types: Types of arguments.
    """

    def __init__(self, tags: Tags, ends: tuple[str, ...], types: ArgumentTypes) -> None:
        super().__init__()
        self._tags = tags
        self._types = types
        self._ends = Markers(ends)
        self._steps = Markers((tags.parameter_open, *ends))
        self._value_ends = Markers((tags.parameter_close, *ends))
        self._read_next = self._read_name
        self._num_arguments = 0
        self._types_of_value = frozenset[str]()
        self._openings = Markers(tuple(each for each in (tags.value_open, tags.key_close) if each))
        self._value: list[str] = []  # pieces of one that is no string
        self._trims = False
        self._num_scanned = 0

    def read(self, text: str, *, is_last: bool) -> int:
        """Read text; return the number of characters consumed."""
        used = 0
        while not (self.is_complete or self.is_broken):
            num = self._read_next(text[used:], is_last)
            if num < 0:
                break
            used += num
        return used

    # Each of the following reads one part, and returns the number of characters consumed; -1: it
    # needs more text.

    def _read_name(self, text: str, is_last: bool) -> int:
        tags = self._tags
        if tags.name_close:
            found = self._header(text, tags.name_close, is_last)
            if found is None:
                return -1
            header, end = found
        else:
            blanks = len(text) - len(text.lstrip(BLANKS))
            step = self._steps.find(text, is_last=is_last)
            space = re.search(r"\s", text[blanks:])
            ends = [*([step[0]] if step else []), *([blanks + space.start()] if space else [])]
            if not ends:
                return self._wait(text, is_last)
            end = min(ends)
            header = text[blanks:end]
        named = _QUOTED.fullmatch(header)
        if named is None or named["attributes"]:
            self.is_broken = True
            return 0
        self.name = named["name"]
        self._arguments.append("{")
        self._read_next = self._read_step
        return end

    def _read_step(self, text: str, is_last: bool) -> int:
        """Read what is between two arguments: blanks, and the tag of the next one or the end."""
        rest = text.lstrip(BLANKS)
        marker = self._steps.at_start(rest)
        if marker == self._tags.parameter_open:
            self._read_next = self._read_key
            return len(text) - len(rest) + len(marker)
        if marker is not None:
            self._arguments.append("}")
            self.is_complete = True
            return len(text) - len(rest)
        if is_last or (rest and not self._steps.may_begin(rest)):
            self.is_broken = True
            return 0
        return -1

    def _read_key(self, text: str, is_last: bool) -> int:
        found = self._header(text, self._tags.key_close, is_last)
        if found is None:
            return -1
        header, end = found
        named = _QUOTED.fullmatch(header)
        if named is None:
            self.is_broken = True
            return 0
        key, comma = named["name"], ", " if self._num_arguments else ""
        self._arguments.append(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        self._num_arguments += 1
        self._types_of_value = self._types_of(key, named["attributes"])
        self._read_next = self._read_opening
        return end

    def _read_opening(self, text: str, is_last: bool) -> int:
        """Read what may stand before a value: the tag of its key again, and its own tag."""
        tags = self._tags
        if tags.value_open:
            rest = text.lstrip(BLANKS)
            marker = self._openings.at_start(rest)
            if marker is not None:
                if marker == tags.value_open:
                    self._begin_value()
                return len(text) - len(rest) + len(marker)
            if not is_last and (not rest or self._openings.may_begin(rest)):
                return -1
        self._begin_value()
        return 0

    def _begin_value(self) -> None:
        self._value.clear()
        self._num_scanned = 0
        self._trims = self._tags.trims_newline
        self._read_next = self._read_value
        if self._is_text:
            self._arguments.append('"')

    def _read_value(self, text: str, is_last: bool) -> int:
        """Read a value up to its end, as far as it is certain."""
        if self._trims:
            if text[:2] in ("", "\r") and not is_last:
                return -1
            self._trims = False
            if text.startswith(("\n", "\r\n")):
                return 2 if text[0] == "\r" else 1
        end, behind = self._value_end(text, is_last)
        self._add(text[:end])
        if behind is None:
            self._num_scanned = max(0, self._num_scanned - end)
            if is_last:
                self.is_broken = True
            return end or -1
        if not self._is_text:
            types = self._types_of_value
            self._arguments.append(json_text("".join(self._value), types))
        else:
            self._arguments.append('"')
        self._read_next = self._read_step
        return behind

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._is_text:
            self._arguments.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _value_end(self, text: str, is_last: bool) -> tuple[int, int | None]:
        """Return the length of the value, and of it with its closing tag.

        If the end is not there yet, the second is None, and the first the length that is certain.
        """
        held: int | None = None  # where the value ends if nothing else closes it
        place = self._num_scanned
        while (found := self._value_ends.find(text, place, is_last=is_last)) is not None:
            start, marker = found
            follows = self._follows(text[start + len(marker) :], marker, is_last)
            if follows is None:
                held = start if held is None else held
                break
            if follows:
                behind = start + len(marker) if marker == self._tags.parameter_close else start
                return self._trimmed(text, start), behind
            if held is None and marker != self._tags.parameter_close:
                held = start
            place = start + len(marker)
        self._num_scanned = place if held is not None else 0
        if is_last and held is not None:
            return self._trimmed(text, held), held
        certain = self._value_ends.num_certain(text) if held is None else held
        return self._trimmed(text, certain), None

    def _follows(self, rest: str, marker: str, is_last: bool) -> bool | None:
        """Whether what stands behind a marker shows that it ends the value; None: not yet."""
        rest = rest.lstrip(BLANKS)
        steps = self._steps if marker == self._tags.parameter_close else self._ends
        if steps.at_start(rest) is not None:
            return True
        if not rest or steps.may_begin(rest):
            return True if is_last else None
        return False

    def _trimmed(self, text: str, end: int) -> int:
        """Return a length without the line break at its end, which may not belong to the value."""
        if self._tags.trims_newline and text[:end].endswith("\n"):
            end -= 2 if text[:end].endswith("\r\n") else 1
        return end

    @property
    def _is_text(self) -> bool:
        return is_text(self._types_of_value)

    def _types_of(self, key: str, attributes: str) -> frozenset[str]:
        tags = self._tags
        if tags.string_attribute and tags.string_attribute in attributes:
            return frozenset({"string"})
        if tags.other_attribute and tags.other_attribute in attributes:
            return frozenset({"null", "integer", "number", "boolean", "object", "array", "string"})
        return self._types.of(self.name or "", key)

    def _header(self, text: str, close: str, is_last: bool) -> tuple[str, int] | None:
        """Return the text up to a marker, and the place behind the marker."""
        end = text.find(close, 0, MAX_NAME)
        if end >= 0:
            return text[:end], end + len(close)
        self._wait(text, is_last)
        return None

    def _wait(self, text: str, is_last: bool) -> int:
        if is_last or len(text) > MAX_NAME:
            self.is_broken = True
        return -1
