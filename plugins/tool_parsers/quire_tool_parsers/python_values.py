"""Literals in Python's notation, read by their grammar and written as JSON.

Nothing is evaluated. The constants of JSON (`true`, `null`) are read as well. A number that JSON
does not have (`inf`, `1e999`) becomes a string.
"""

import re
from collections.abc import Generator
from typing import Any

from quire_tool_parsers.json_scan import (
    BLANKS,
    MAX_DEPTH,
    BrokenCallError,
    Scan,
    after_blanks,
    refuse,
)
from quire_tool_parsers.json_writing import integer_text, number_text, string_text
from quire_tool_parsers.python_strings import QUOTES, read_string

_WORDS = {
    "True": "true", "False": "false", "None": "null",
    "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_WORD = re.compile(r"[\w.+-]*")
_PREFIXES = frozenset({"r", "b", "u", "br", "rb"})  # of strings, in lower case
_BASED_NUMBER = re.compile(r"[-+]?0(?:x[0-9a-f_]+|o[0-7_]+|b[01_]+)", re.IGNORECASE)
_NO_NUMBER = re.compile(r"[-+]?(?:inf|infinity|nan)", re.IGNORECASE)


def read_value(first: str, out: list[str], depth: int = MAX_DEPTH) -> Scan:
    """Append the JSON text of a value; return the first non-blank character after it.

    Args:
        first: First character of the value.
        out: Pieces of JSON text.
        depth: Levels of nesting that it may have.
    """
    if depth == 0:
        refuse("values are nested too deeply")
    if first in QUOTES:
        return (yield from read_string(first, out))
    match first:
        case "[":
            out.append("[")
            return (yield from _read_items("]", out, depth))
        case "(":
            return (yield from _read_group(out, depth))
        case "{":
            return (yield from _read_dict(out, depth))
    return (yield from _read_word(first, out))


def read_run(first: str, pattern: re.Pattern[str]) -> Generator[Any, str, tuple[str, str]]:
    """Return the characters from the first one on that match a pattern, and the one after them."""
    if pattern.fullmatch(first) is None:
        return "", first
    run = [first]
    while piece := (yield pattern):
        run.append(piece)
    return "".join(run), (yield)


def behind_blanks(character: str) -> Scan:
    """Return a character that was read, or the first non-blank one after it."""
    if character in BLANKS:
        character = yield from after_blanks()
    return character


def _read_items(closer: str, out: list[str], depth: int, *, is_first: bool = True) -> Scan:
    """Write the items of a list up to its closing bracket, which JSON writes as `]`."""
    character = yield from after_blanks()
    while character != closer:
        if not is_first:
            out.append(", ")
        is_first = False
        character = yield from read_value(character, out, depth - 1)
        if character == ",":
            character = yield from after_blanks()
        elif character != closer:
            refuse("a comma is missing")
    out.append("]")
    return (yield from after_blanks())


def _read_group(out: list[str], depth: int) -> Scan:
    """Write what is in round brackets: a tuple, or one value without a comma."""
    character = yield from after_blanks()
    if character == ")":
        out.append("[]")
        return (yield from after_blanks())
    first: list[str] = []
    character = yield from read_value(character, first, depth - 1)
    if character == ")":
        out += first
        return (yield from after_blanks())
    if character != ",":
        refuse("a comma is missing")
    out += ["[", *first]
    return (yield from _read_items(")", out, depth, is_first=False))


def _read_dict(out: list[str], depth: int) -> Scan:
    keys = set[str]()
    out.append("{")
    character = yield from after_blanks()
    while character != "}":
        key: list[str] = []
        if (yield from read_value(character, key, 1)) != ":":
            refuse("a colon is missing")
        text = _key("".join(key))
        if text in keys:
            refuse("a key occurs twice")
        out.append(f"{', ' if keys else ''}{text}: ")
        keys.add(text)
        character = yield from read_value((yield from after_blanks()), out, depth - 1)
        if character == ",":
            character = yield from after_blanks()
        elif character != "}":
            refuse("a comma is missing")
    out.append("}")
    return (yield from after_blanks())


def _key(text: str) -> str:
    """Return the JSON text of a key; one that is a number or a constant becomes a string."""
    if text[0] in "[{":
        refuse("a key is a string or a number")
    return text if text[0] == '"' else string_text(text)


def _read_word(first: str, out: list[str]) -> Scan:
    word, behind = yield from read_run(first, _WORD)
    if behind in QUOTES and word.lower() in _PREFIXES:
        return (yield from read_string(behind, out, is_raw="r" in word.lower()))
    out.append(_scalar(word))
    return (yield from behind_blanks(behind))


def _scalar(word: str) -> str:
    """Return the JSON text of a number or a constant."""
    if word in _WORDS:
        return _WORDS[word]
    if _BASED_NUMBER.fullmatch(word):
        return _based_number(word)
    plain = word.replace("_", "")
    if (number := number_text(plain) or integer_text(plain)) is not None:
        return number
    if _NO_NUMBER.fullmatch(word) or _is_too_large(plain):
        return string_text(word)
    raise BrokenCallError(f"{word[:40]!r} is no value")


def _based_number(word: str) -> str:
    try:
        return str(int(word, 0))
    except ValueError:  # underscores in wrong places
        refuse(f"{word[:40]!r} is no value")


def _is_too_large(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word.isascii()
