"""Reader of a call in Python's notation: `find(city="Oslo", days=[1, 2], units={"wind": None})`.

Arguments have names, and their values are literals.
"""

import re

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import Characters, after_blanks, refuse
from quire_tool_parsers.json_writing import string_text
from quire_tool_parsers.python_values import behind_blanks, read_run, read_value

_NAME = re.compile(r"[\w.-]*")
_END = "\0"


class PythonReader(ScanningReader):
    """Reader of a call with named arguments."""

    def scan(self) -> Characters:
        """Read the name and the arguments."""
        name, behind = yield from read_run((yield from after_blanks()), _NAME)
        if behind != "(" or not name:
            refuse("a call has a name and arguments in brackets")
        self.name = name
        yield from self._read_arguments()

    def _read_arguments(self) -> Characters:
        write, keys = self._arguments.append, set[str]()
        write("{")
        character = yield from after_blanks()
        while character != ")":
            key, character = yield from read_run(character, _NAME)
            if not key or key in keys or (yield from behind_blanks(character)) != "=":
                refuse("an argument has a name of its own")
            write(f"{', ' if keys else ''}{string_text(key)}: ")
            keys.add(key)
            character = yield from read_value((yield from after_blanks()), self._arguments)
            if character == ",":
                character = yield from after_blanks()
            elif character != ")":
                refuse("a comma is missing")
        write("}")


class _ValueReader(ScanningReader):
    """Reader of one value, and of a mark behind it."""

    def scan(self) -> Characters:
        first = yield from after_blanks()
        if (yield from read_value(first, self._arguments)) != _END:
            refuse("there is something behind the value")

    @property
    def value(self) -> str:
        """JSON text of the value."""
        return "".join(self._arguments)


def python_value(text: str) -> str | None:
    """Return the JSON text of a literal in Python's notation; None if a text is none."""
    reader = _ValueReader()
    num_read = reader.read(text + _END, is_last=True)
    is_whole = reader.is_complete and num_read == len(text) + len(_END)
    return reader.value if is_whole else None
