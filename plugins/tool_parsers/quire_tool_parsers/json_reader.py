"""Reader of a call that is a JSON object: `{"name": "find", "arguments": {"city": "Oslo"}}`."""

from quire_tool_parsers.call_format import JsonKeys
from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import (
    BLANKS,
    Characters,
    after_blanks,
    parse,
    read_container,
    read_string,
    read_value,
    refuse,
)

NO_ARGUMENTS = "{}"


class JsonReader(ScanningReader):
    """Reader of a JSON object with a name and arguments, keys in any order, others allowed.

    Arguments may be written as a string that contains the JSON text of an object.

    Args:
        keys: Keys of the object.
    """

    def __init__(self, keys: JsonKeys) -> None:
        self._keys = keys
        self._has_arguments = False
        super().__init__()

    def scan(self) -> Characters:
        """Read the object."""
        character = yield from after_blanks()
        if character != "{":
            refuse("a call must be a JSON object")
        character, is_first = (yield from after_blanks()), True
        while True:
            key = yield from self._read_key(character)
            if is_first and self._keys.first and key not in self._keys.first:
                refuse("a call begins with another key")
            is_first = False
            character = yield from after_blanks()
            if character != ":":
                refuse("a colon is missing")
            character = yield from self._read_member(key, (yield from after_blanks()))
            if character == "}":
                break
            if character != ",":
                refuse("a comma is missing")
            character = yield from after_blanks()
        if self.name is None:
            refuse("a call must have a name")
        if not self._has_arguments:
            if self._keys.is_required:
                refuse("a call must have arguments")
            self._arguments.append(NO_ARGUMENTS)

    def _read_key(self, first: str) -> Characters:
        if first != '"':
            refuse("a key must be a string")
        literal: list[str] = []
        yield from read_string(literal)
        return parse(literal)

    def _read_member(self, key: str, first: str) -> Characters:
        """Read a value; return the first non-blank character after it."""
        if key in self._keys.arguments:
            return (yield from self._read_arguments(first))
        literal: list[str] = []
        behind = yield from read_value(first, literal)
        value = parse(literal)
        if key in self._keys.name:
            self._set_name(value)
        if behind is None or behind in BLANKS:
            behind = yield from after_blanks()
        return behind

    def _read_arguments(self, first: str) -> Characters:
        if self._has_arguments or first not in '{"':
            refuse("arguments must be one JSON object")
        self._has_arguments = True
        if first == '"':
            literal: list[str] = []
            yield from read_string(literal)
            self._arguments.append(_object_in(parse(literal)))
        else:
            yield from read_container(first, self._arguments)
            parse(self._arguments)
        return (yield from after_blanks())

    def _set_name(self, name: object) -> None:
        if self.name is not None or not isinstance(name, str) or not name:
            refuse("a name must be one string")
        self.name = name


def _object_in(text: str) -> str:
    """Return a text that is the JSON text of an object."""
    if not isinstance(parse([text]), dict):
        refuse("arguments must be one JSON object")
    return text
