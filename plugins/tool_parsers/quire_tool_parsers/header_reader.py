"""Reader of a call whose name is in a header before its arguments: `find[ARGS]{"city": "Oslo"}`."""

import re
from collections.abc import Collection

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import BLANKS, Characters, parse, read_container, refuse

MAX_HEADER = 256  # characters
_ANY_TEXT = re.compile(".+", re.DOTALL)


class HeaderReader(ScanningReader):
    """Reader of a header and a JSON object.

    Args:
        header: Pattern of the header, which ends before the object. Its group `name` is the name of
            the tool, and its group `id`, if there is one, the id of the call.
        names: Names of the tools.
        ids: Texts that are ids; others that the model writes are none.
    """

    def __init__(
        self,
        header: re.Pattern[str],
        names: Collection[str] = (),
        ids: re.Pattern[str] = _ANY_TEXT,
    ) -> None:
        self._header = header
        self._names = names
        self._ids = ids
        super().__init__()

    def scan(self) -> Characters:
        """Read the header, up to the opening brace, and the object."""
        read: list[str] = []
        while (character := (yield)) != "{":
            read.append(character)
            if len(read) > MAX_HEADER:
                refuse("a header is too long")
        found = self._header.fullmatch("".join(read).strip(BLANKS))
        if found is None or not found["name"]:
            refuse("a header must have a name")
        written = found.groupdict().get("id")
        self.id = written if written and self._ids.fullmatch(written) else None
        self.name = self._tool(found["name"])
        yield from read_container(character, self._arguments)
        parse(self._arguments)

    def _tool(self, name: str) -> str:
        """Return the tool of a call; one with a number for its name is of the only tool."""
        if not name.isdigit() or name in self._names:
            return name
        if len(self._names) != 1:
            refuse("a header must have a name")
        return next(iter(self._names))
