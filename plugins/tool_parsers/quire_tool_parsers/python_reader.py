"""Reader of a call in Python's notation: `find(city="Oslo", days=[1, 2], units={"wind": None})`.

Arguments are read by their grammar and never evaluated. Values are literals; those of JSON (`true`,
`null`) are read as well.
"""

import json
from collections.abc import Generator

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import BLANKS, MAX_DEPTH, Characters, after_blanks, refuse

_WORDS = {
    "True": "true", "False": "false", "None": "null",
    "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}  # escapes by the number of their hexadecimal digits
_CLOSERS = {"[": "]", "(": ")"}
_MAX_WORD = 1000  # characters of a number, a word or a key

Scan = Generator[None, str, str]  # returns the character after what was read


class PythonReader(ScanningReader):
    """Reader of a call with named arguments."""

    def scan(self) -> Characters:
        """Read the name and the arguments."""
        name: list[str] = []
        character = yield from after_blanks()
        while character.isalnum() or character in "_.-":
            name.append(character)
            if len(name) > _MAX_WORD:
                refuse("a name is too long")
            character = yield
        if character != "(" or not name:
            refuse("a call has a name and arguments in brackets")
        self.name = "".join(name)
        yield from self._read_arguments()

    def _read_arguments(self) -> Characters:
        write, keys = self._arguments.append, set[str]()
        write("{")
        character = yield from after_blanks()
        while character != ")":
            key, behind = yield from self._read_key(character)
            if behind != "=" or key in keys:
                refuse("an argument has a name of its own")
            write(f"{', ' if keys else ''}{json.dumps(key, ensure_ascii=False)}: ")
            keys.add(key)
            character = yield from self._read_value((yield from after_blanks()), MAX_DEPTH)
            if character == ",":
                character = yield from after_blanks()
            elif character != ")":
                refuse("a comma is missing")
        write("}")

    def _read_key(self, first: str) -> Generator[None, str, tuple[str, str]]:
        """Read the name of an argument; return it, and what follows it."""
        key, character = [], first
        while character.isalnum() or character in "_-":
            key.append(character)
            if len(key) > _MAX_WORD:
                refuse("a name is too long")
            character = yield
        if not key:
            refuse("an argument has a name")
        if character in BLANKS:
            character = yield from after_blanks()
        return "".join(key), character

    def _read_value(self, first: str, depth: int) -> Scan:
        """Write a value as JSON; return the first non-blank character after it."""
        if depth == 0:
            refuse("values are nested too deeply")
        if first in "\"'":
            return (yield from self._read_string(first))
        if first in _CLOSERS:
            return (yield from self._read_list(_CLOSERS[first], depth))
        if first == "{":
            return (yield from self._read_dict(depth))
        word, character = [], first
        while character.isalnum() or character in "+-._":
            word.append(character)
            if len(word) > _MAX_WORD:
                refuse("a number is too long")
            character = yield
        self._arguments.append(_word("".join(word)))
        return (yield from _from(character))

    def _read_list(self, closer: str, depth: int) -> Scan:
        write, is_first = self._arguments.append, True
        write("[")
        character = yield from after_blanks()
        while character != closer:
            if not is_first:
                write(", ")
            is_first = False
            character = yield from self._read_value(character, depth - 1)
            if character == ",":
                character = yield from after_blanks()
            elif character != closer:
                refuse("a comma is missing")
        write("]")
        return (yield from after_blanks())

    def _read_dict(self, depth: int) -> Scan:
        write, is_first = self._arguments.append, True
        write("{")
        character = yield from after_blanks()
        while character != "}":
            if not is_first:
                write(", ")
            is_first = False
            if character not in "\"'":
                refuse("a key is a string")
            if (yield from self._read_string(character)) != ":":
                refuse("a colon is missing")
            write(": ")
            character = yield from self._read_value((yield from after_blanks()), depth - 1)
            if character == ",":
                character = yield from after_blanks()
            elif character != "}":
                refuse("a comma is missing")
        write("}")
        return (yield from after_blanks())

    def _read_string(self, quote: str) -> Scan:
        """Write a string, whose opening quote was read; return what follows the closing one."""
        write = self._arguments.append
        write('"')
        character = yield
        if character == quote:
            character = yield
            if character != quote:
                write('"')
                return (yield from _from(character))
            yield from self._read_long_string(quote)
        else:
            while character != quote:
                if character == "\\":
                    character = yield from _escaped()
                write(json.dumps(character, ensure_ascii=False)[1:-1])
                character = yield
        write('"')
        return (yield from after_blanks())

    def _read_long_string(self, quote: str) -> Characters:
        """Write a string between three quotes."""
        num_quotes = 0
        while num_quotes < 3:
            character = yield
            if character == quote:
                num_quotes += 1
                continue
            self._write_quotes(quote, num_quotes)
            num_quotes = 0
            if character == "\\":
                character = yield from _escaped()
            self._arguments.append(json.dumps(character, ensure_ascii=False)[1:-1])

    def _write_quotes(self, quote: str, number: int) -> None:
        if number:
            self._arguments.append(json.dumps(quote * number)[1:-1])


def _from(character: str) -> Scan:
    """Return a character, or the first non-blank one after it."""
    if character in BLANKS:
        character = yield from after_blanks()
    return character


def _escaped() -> Scan:
    """Return the character that an escape stands for; one that is none stands for itself."""
    character = yield
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character not in _CODES:
        return "\\" + character
    digits = ""
    for _ in range(_CODES[character]):
        digits += yield
    try:
        return _in_unicode(int(digits, 16))
    except ValueError:
        refuse("an escape has no number")


def _in_unicode(code: int) -> str:
    if 0xD800 <= code < 0xE000:
        return "\ufffd"  # half of a pair, which Python's own notation does not use
    return chr(code)


def _word(word: str) -> str:
    """Return the JSON text of a number or a constant."""
    if word in _WORDS:
        return _WORDS[word]
    plain = word.replace("_", "").removeprefix("+")
    try:
        if plain.lstrip("-").lower().startswith("0x"):
            return str(int(plain, 16))
        value: int | float = int(plain)
    except ValueError:
        try:
            value = float(plain)
        except ValueError:
            refuse(f"{word[:40]!r} is no value")
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        refuse(f"{word[:40]!r} is no number of JSON")
