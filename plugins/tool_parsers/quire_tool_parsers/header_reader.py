"""Reader of a call whose name is in a header before its arguments: `find[ARGS]{"city": "Oslo"}`."""

import re

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import BLANKS, Characters, parse, read_container, refuse

MAX_HEADER = 512  # characters


class HeaderReader(ScanningReader):
    """Reader of a header and a JSON object.

    Args:
        header: Pattern of the header, which ends before the object. Its group `name` is the name of
            the tool, and its group `id`, if there is one, the id of the call.
    """

    def __init__(self, header: re.Pattern[str]) -> None:
        self._header = header
        super().__init__()

    def scan(self) -> Characters:
        """Read the header, up to the opening brace, and the object."""
        read: list[str] = []
        while (character := (yield)) != "{":
            read.append(character)
            if len(read) > MAX_HEADER:
                refuse("a header is too long")
        found = self._header.fullmatch("".join(read).strip(BLANKS))
        if found is None:
            refuse("a header must have a name")
        self.name, self.id = found["name"], found.groupdict().get("id")
        yield from read_container(character, self._arguments)
        parse(self._arguments)
