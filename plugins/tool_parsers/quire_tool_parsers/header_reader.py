"""Reader of a call whose name is in a header before its arguments: `find[ARGS]{"city": "Oslo"}`.

What follows the call ends a header as well, so that a call without arguments is none of the next
call's header. At the end of the text nothing shows that the arguments are not cut off, so there
only a tool that takes none is called without them.
"""

import re

from quire.interfaces.markers import Markers
from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import (
    BLANKS,
    BrokenCallError,
    Characters,
    parse,
    read_container,
    refuse,
)
from quire_tool_parsers.response_template.pattern import Found, Pattern

MAX_HEADER = 256  # characters
BRACE, _EMPTY = "{", "{}"


class HeaderReader(ScanningReader):
    """Reader of a header and a JSON object.

    Args:
        header: Pattern of the header, which ends before the object. Its group `name` is the name of
            the tool, and its group `id`, if there is one, the id of the call.
        markers: Texts in the header, of which the last one stands before the arguments.
        ends: What ends the header: what may follow a call, and `BRACE`.
        types: Types of arguments.
        ids: Texts that are ids; others that the model writes are none.
    """

    def __init__(
        self,
        header: Pattern,
        markers: tuple[str, ...],
        ends: Markers,
        types: ArgumentTypes,
        ids: re.Pattern[str],
    ) -> None:
        self._header = header
        self._markers = markers
        self._ends = ends
        self._types = types
        self._ids = ids
        self._num_seen = 0  # characters up to the last end that belongs to the header
        super().__init__()

    def read(self, text: str, *, is_last: bool) -> int:
        """Read text; return the number of characters consumed."""
        if self.name is not None:
            return super().read(text, is_last=is_last)
        try:
            return self._read_header(text, is_last)
        except BrokenCallError:
            self.is_broken = True
            return len(text) if is_last else 0

    def scan(self) -> Characters:
        """Read the object."""
        yield from read_container((yield), self._arguments)
        parse(self._arguments)

    def _read_header(self, text: str, is_last: bool) -> int:
        """Read the header once its end is there; return the place of its end."""
        place = self._num_seen
        while (found := self._ends.find(text, place, is_last=is_last)) is not None:
            place, end = found[0], found[0] + len(found[1])
            if place > MAX_HEADER:
                break
            if found[1] == BRACE:
                self._take_header(text[:place])
                return place
            if not self._match(text[:end]):  # otherwise it belongs to the header
                self._take_empty(text[:place])
                return place
            place = self._num_seen = end
        if place > MAX_HEADER or self._ends.num_certain(text) > MAX_HEADER:
            refuse("a header is too long")
        if not is_last:
            return 0
        self._take_empty(text, is_last=True)
        return len(text)

    def _match(self, header: str) -> Found | None:
        return self._header.full_match(header.strip(BLANKS))

    def _take_header(self, header: str) -> None:
        found = self._match(header)
        name = found and found.captures.get("name")
        if not found or not name:
            refuse("a header must have a name")
        written = found.captures.get("id")
        self.id = written if written and self._ids.fullmatch(written) else None
        self.name = self._tool(name)

    def _take_empty(self, text: str, *, is_last: bool = False) -> None:
        """Take a header without an object behind it as a call without arguments."""
        header = text.rstrip(BLANKS)
        for nothing in ("null", '""'):
            header = header.removesuffix(nothing).rstrip(BLANKS)
        found = self._match(header)
        name = None if found is None else self._tool(found.captures.get("name", ""))
        is_whole = not is_last or (header.endswith(self._markers) and self._types.takes_none(name))
        if name not in self._types.names or not is_whole:
            refuse("arguments are missing")
        self._take_header(header)
        self._arguments.append(_EMPTY)
        self.is_complete = True

    def _tool(self, name: str) -> str:
        """Return the tool of a call; one with a number for its name is of the only tool."""
        names = self._types.names
        if not name.isdigit() or name in names:
            return name
        if len(names) != 1:
            refuse("a header must have a name")
        return next(iter(names))
