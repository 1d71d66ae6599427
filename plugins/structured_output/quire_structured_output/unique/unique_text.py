"""A JSON text read byte by byte, which knows the earlier items of each unique array it is in.

Items are compared in a canonical writing: without blanks, and each number in one way. A text is
read along with the completion, whose grammar has checked it; what is read ahead and dropped costs
nothing, because states are values, and what they share is cut to their length when it is used.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire_structured_output.unique.unique_places import Place

BLANK, QUOTE, BACKSLASH, COLON, COMMA = b' "\\:,'
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = b"[]{}"
IN_NUMBER = frozenset(b"0123456789+-.eE")
LITERALS = (b"true", b"false", b"null")
END_OF_NUMBER = b"\0"  # so that no canonical number is the beginning of another
VALUE, NAME, STRING, NAME_STRING, NUMBER, LITERAL, AFTER = range(7)  # what is read
_STRING_END = re.compile(rb'["\\]')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DIGITS = re.compile(rb"-?([0-9]*)(?:\.([0-9]*))?")


class Items:
    """The earlier items of a unique array, of which a state sees the first ones."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._keys: list[bytes] = []
        self._sorted: list[bytes] = []
        self._known: set[bytes] = set()
        self._strings: list[bytes] = []  # in the items, sorted
        self.ways: list[bytes] = []  # beginnings of items that are not among them

    def add(self, text: bytes, count: int) -> bool:
        """Add an item after the first `count`; return False if it is one of them."""
        self.cut(count)
        key = _key(text)
        if key in self._known:
            return False
        self._texts.append(text)
        self._keys.append(key)
        self._known.add(key)
        insort(self._sorted, text)
        for string in _STRING.findall(text):
            insort(self._strings, string)
        return True

    def cut(self, count: int) -> None:
        """Forget the items after the first `count`."""
        while len(self._texts) > count:
            self._known.remove(self._keys.pop())
            text = self._texts.pop()
            del self._sorted[bisect_left(self._sorted, text)]
            for string in _STRING.findall(text):
                del self._strings[bisect_left(self._strings, string)]

    def beginning_with(self, prefix: bytes, count: int) -> list[bytes]:
        """Return the first `count` items, sorted, as far as they begin with a prefix."""
        self.cut(count)
        return _beginning_with(self._sorted, prefix)

    def strings_beginning_with(self, prefix: bytes, count: int) -> list[bytes]:
        """Return the strings in the first `count` items, as far as they begin with a prefix."""
        self.cut(count)
        return _beginning_with(self._strings, prefix)


@dataclass(frozen=True, slots=True)
class Frame:
    """An array or object that is not closed.

    Attributes:
        parent: The array or object that it is in.
        is_array: Whether it is an array.
        place: What the schema says of it, if a unique array can be in it.
        is_recorded: Whether its text is part of an item of a unique array.
        items: The earlier items, if they are unique.
        count: How many of them there are.
        start: Where the current item begins in the recorded text.
        index: Number of the current item.
    """

    parent: Frame | None
    is_array: bool
    place: Place | None
    is_recorded: bool = False
    items: Items | None = None
    count: int = 0
    start: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class TextState:
    """What is known of a text up to some byte.

    Attributes:
        frame: The innermost array or object that is not closed.
        place: The place of the value that follows or is being read.
        mode: What is being read.
        raw: What is being read, from its first byte on.
        is_escaped: Whether a backslash came last.
        length: Length of the recorded text.
    """

    frame: Frame | None
    place: Place | None
    mode: int = VALUE
    raw: bytes = b""
    is_escaped: bool = False
    length: int = 0

    def open_items(self) -> Iterator[Frame]:
        """Yield the unique arrays that are within an item, the innermost first."""
        frame = self.frame
        if frame is not None and self.mode == AFTER:
            frame = frame.parent
        while frame is not None and frame.is_recorded:
            if frame.items is not None:
                yield frame
            frame = frame.parent


class UniqueText:
    """Reads texts of a schema, and keeps what is recorded of them."""

    def __init__(self) -> None:
        self._text = bytearray()

    def recorded(self, frame: Frame, state: TextState) -> bytes:
        """Return what is recorded of the current item of a unique array."""
        return bytes(self._text[frame.start : state.length])

    def feed(self, state: TextState, octets: bytes) -> TextState | None:
        """Return the state after further bytes; None: an item of a unique array is repeated."""
        del self._text[state.length :]
        at = 0
        while at < len(octets):
            if state.mode in (STRING, NAME_STRING):
                found, at = self._string(state, octets, at)
            else:
                found, at = self._structure(state, octets[at]), at + 1
            if found is None:
                return None
            state = found
        return state

    def _string(self, state: TextState, octets: bytes, at: int) -> tuple[TextState | None, int]:
        """Read a string up to its end, or to the end of the bytes; return where it ends, too."""
        start, is_escaped, is_closed = at, state.is_escaped, False
        while at < len(octets) and not is_closed:
            if is_escaped:
                is_escaped, at = False, at + 1
                continue
            found = _STRING_END.search(octets, at)
            at = len(octets) if found is None else found.end()
            is_escaped = found is not None and found[0] == b"\\"
            is_closed = found is not None and found[0] == b'"'
        part = octets[start:at]
        raw = state.raw + part
        length = self._record(state, part)
        if not is_closed:
            return TextState(state.frame, None, state.mode, raw, is_escaped, length), at
        if state.mode == STRING:
            return self._complete(TextState(state.frame, None, AFTER, length=length)), at
        holder = state.frame.place if state.frame is not None else None
        place = holder.value(raw) if holder is not None else None
        return TextState(state.frame, place, VALUE, length=length), at

    def _structure(self, state: TextState, octet: int) -> TextState | None:
        """Read one byte outside of strings."""
        if state.mode == NUMBER:
            if octet in IN_NUMBER:
                raw = state.raw + bytes([octet])
                return TextState(state.frame, None, NUMBER, raw, length=state.length)
            number = canonical_number(state.raw) + END_OF_NUMBER
            length = self._record(state, number)
            completed = self._complete(TextState(state.frame, None, AFTER, length=length))
            return None if completed is None else self._structure(completed, octet)
        if octet <= BLANK:
            return state
        if octet in (CLOSE_ARRAY, CLOSE_OBJECT):
            return self._close(state, octet)
        if octet in (OPEN_ARRAY, OPEN_OBJECT):
            return self._open(state, octet)
        length = state.length
        if octet in (COLON, QUOTE, COMMA) or state.mode == LITERAL:
            length = self._record(state, bytes([octet]))
        if octet == COMMA:
            return _after_comma(state, length)
        if octet == COLON:
            return replace(state, length=length)
        if octet == QUOTE:
            mode = NAME_STRING if state.mode == NAME else STRING
            return TextState(state.frame, None, mode, b'"', length=length)
        if octet in IN_NUMBER and state.mode != LITERAL:
            return TextState(state.frame, None, NUMBER, bytes([octet]), length=length)
        return self._literal(state, octet, length)

    def _literal(self, state: TextState, octet: int, length: int) -> TextState | None:
        raw = state.raw + bytes([octet])
        if state.mode != LITERAL:
            length = self._record(state, raw)
        if raw in LITERALS:
            return self._complete(TextState(state.frame, None, AFTER, length=length))
        return TextState(state.frame, None, LITERAL, raw, length=length)

    def _open(self, state: TextState, octet: int) -> TextState:
        length = self._record(state, bytes([octet]))
        is_array, place, parent = octet == OPEN_ARRAY, state.place, state.frame
        is_inside = parent is not None and parent.is_recorded
        if not is_array:
            return TextState(Frame(parent, False, place, is_inside), None, NAME, length=length)
        is_unique = place is not None and place.is_unique
        frame = Frame(
            parent=parent,
            is_array=True,
            place=place,
            is_recorded=is_inside or is_unique,
            items=Items() if is_unique else None,
            start=length,
        )
        return TextState(frame, place.item(0) if place is not None else None, VALUE, length=length)

    def _close(self, state: TextState, octet: int) -> TextState | None:
        frame = state.frame
        if frame is None:  # the grammar has let no such text pass
            return state
        parent = frame.parent
        closed = TextState(parent, None, AFTER, length=state.length)
        if parent is not None and parent.is_recorded:
            closed = TextState(parent, None, AFTER, length=self._record(closed, bytes([octet])))
        return self._complete(closed)

    def _complete(self, state: TextState) -> TextState | None:
        """Note a value that has been read; None: it repeats an item."""
        frame = state.frame
        if frame is None or frame.items is None:
            return state
        if not frame.items.add(self.recorded(frame, state), frame.count):
            return None
        counted = replace(frame, count=frame.count + 1)
        return TextState(counted, state.place, state.mode, length=state.length)

    def _record(self, state: TextState, octets: bytes) -> int:
        """Append bytes to the recorded text; return its length."""
        if state.frame is None or not state.frame.is_recorded:
            return state.length
        self._text += octets
        return len(self._text)


def _after_comma(state: TextState, length: int) -> TextState:
    frame = state.frame
    if frame is None or not frame.is_array:
        return TextState(frame, None, NAME, length=length)
    index = frame.index + 1
    place = frame.place.item(index) if frame.place is not None else None
    return TextState(replace(frame, index=index, start=length), place, VALUE, length=length)


def _beginning_with(texts: list[bytes], prefix: bytes) -> list[bytes]:
    first = bisect_left(texts, prefix)
    return texts[first : bisect_left(texts, prefix + b"\xff", first)]


def canonical_number(text: bytes) -> bytes:
    """Return one writing of a number, as Python's parser of JSON reads it."""
    try:
        value = json.loads(text)
    except ValueError:  # more digits than Python converts
        return text
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value).encode()


def digits(text: bytes, *, is_begun: bool = False) -> bytes:
    """Return the digits of a number without zeros at its ends; at the first only, if it goes on."""
    found = _DIGITS.match(text)
    written = b"" if found is None else (found[1] + (found[2] or b"")).lstrip(b"0")
    return written if is_begun else written.rstrip(b"0")


def _key(text: bytes) -> bytes:
    """Return a text that is the same for equal items."""
    if b"{" not in text:
        return text
    try:
        value = json.loads(text.replace(END_OF_NUMBER, b""))
    except (RecursionError, ValueError):  # what Python does not read is compared as it is written
        return text
    return json.dumps(value, sort_keys=True).encode()
