"""Strings in Python's notation, written as JSON while they are read.

A line break may stand in any of them, and an escape that Python does not have stands for itself.
Two escapes that are the halves of one character, as JSON writes it, become that character.
"""

import re
from collections.abc import Generator
from typing import Any

from quire_tool_parsers.json_scan import BLANKS, Characters, Scan, after_blanks
from quire_tool_parsers.json_writing import escaped

QUOTES = ("'", '"')

_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_CODES = {"x": 2, "u": 4, "U": 8}  # escapes by the number of their hexadecimal digits
_HEXADECIMAL = "0123456789abcdefABCDEF"
_OCTAL = "01234567"
_PLAIN = re.compile(r"""[^"'\\]*""")


def read_string(quote: str, out: list[str], *, is_raw: bool = False) -> Scan:
    """Append a string as JSON; return the first non-blank character after it.

    Strings that follow each other are one.

    Args:
        quote: Its opening quote, which was read.
        out: Pieces of JSON text.
        is_raw: Whether a backslash stands for itself.
    """
    string = _JsonString(out)
    while quote in QUOTES:
        character = yield from _read_one(quote, string, is_raw)
        quote = (yield from after_blanks()) if character in BLANKS else character
    string.end()
    return quote


def _read_one(quote: str, string: "_JsonString", is_raw: bool) -> Scan:
    """Write one string; return the character after its closing quote."""
    character = yield
    if character == quote:
        character = yield
        if character != quote:
            return character
        yield from _read_long(quote, string, is_raw)
        return (yield)
    while character != quote:
        character = yield from _read_part(character, string, is_raw)
    return (yield)


def _read_long(quote: str, string: "_JsonString", is_raw: bool) -> Characters:
    """Write a string between three quotes."""
    character = yield
    num_quotes = 0
    while True:
        if character == quote:
            num_quotes += 1
            if num_quotes == 3:
                return
            character = yield
            continue
        string.add(quote * num_quotes)
        num_quotes = 0
        character = yield from _read_part(character, string, is_raw)


def _read_part(character: str, string: "_JsonString", is_raw: bool) -> Scan:
    """Write an escape, or a run of other characters; return the character after it."""
    if character != "\\":
        string.add(character)
        while run := (yield _PLAIN):
            string.add(run)
        return (yield)
    if is_raw:
        string.add("\\" + (yield))
        return (yield)
    return (yield from _read_escape(string))


def _read_escape(string: "_JsonString") -> Scan:
    """Write what an escape stands for; return the character after it."""
    character = yield
    if character in _ESCAPES:
        string.add(_ESCAPES[character])
        return (yield)
    if character in _CODES:
        return (yield from _read_code(character, string))
    if character in _OCTAL:
        digits, behind = yield from _read_digits(character, _OCTAL, 3)
        string.add(chr(int(digits, 8)))
        return behind
    string.add("\\" + character)
    return (yield)


def _read_code(kind: str, string: "_JsonString") -> Scan:
    """Write the character of a hexadecimal code; one with too few digits stands for itself."""
    digits, behind = yield from _read_digits("", _HEXADECIMAL, _CODES[kind])
    code = int(digits, 16) if len(digits) == _CODES[kind] else -1
    string.add(chr(code) if 0 <= code <= 0x10FFFF else f"\\{kind}{digits}")
    return behind


def _read_digits(
    digits: str, allowed: str, num_digits: int
) -> Generator[Any, str, tuple[str, str]]:
    """Return up to a number of digits, and the character after them."""
    character = yield
    while len(digits) < num_digits and character in allowed:
        digits += character
        character = yield
    return digits, character


class _JsonString:
    """Writes a string as JSON, piece by piece.

    Args:
        out: Pieces of JSON text.
    """

    def __init__(self, out: list[str]) -> None:
        self._out = out
        self._half = ""  # the first half of a character that is written as two
        out.append('"')

    def add(self, text: str) -> None:
        """Write the next characters."""
        if self._half or "\ud800" <= text[-1:] <= "\udfff":
            text, self._half = self._half + text, ""
            if "\ud800" <= text[-1:] <= "\udbff":
                text, self._half = text[:-1], text[-1]
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if text:
            self._out.append(escaped(text))

    def end(self) -> None:
        """Write the end of the string."""
        if self._half:
            self._out.append("\ufffd")
        self._out.append('"')
