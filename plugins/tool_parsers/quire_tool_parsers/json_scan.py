"""Scanners of JSON text that arrives character by character.

They find the ends of values; `json` checks each complete one. An error that is visible earlier (a
`<` between values, a line break in a string) raises at once.
"""

import json
import re
from collections.abc import Generator
from typing import Any, NoReturn

BLANKS = " \t\r\n"
BARE = frozenset("0123456789+-.eEtruefalsn")  # numbers, true, false, null
CLOSERS = {"{": "}", "[": "]"}
MAX_DEPTH = 200

# A scanner yields None and is sent the next character; or it yields a pattern and is sent the next
# characters that match it, which may be none, and may be less than the whole run.
Characters = Generator[Any, str, Any]
Scan = Generator[Any, str, str]  # returns the character after what was read

_BLANKS = re.compile(f"[{BLANKS}]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')  # characters of a string


class BrokenCallError(ValueError):
    """The text cannot become a call any more."""


def run_end(wanted: re.Pattern[str] | None, text: str, start: int) -> int:
    """Return the end of what a scanner has asked for, in a text from a place on."""
    if wanted is None:
        return start + 1
    found = wanted.match(text, start)
    return start if found is None else found.end()


def skip_blanks(text: str, start: int) -> int:
    """Return the place of the first character from a place on that is no blank."""
    return run_end(_BLANKS, text, start)


def after_blanks() -> Scan:
    """Return the next non-blank character."""
    while (character := (yield)) in BLANKS:
        pass
    return character


def read_value(first: str, literal: list[str]) -> Characters:
    """Append a value's text; return the character after it if that was read, else None."""
    if first == '"':
        return (yield from read_string(literal))
    if first in CLOSERS:
        return (yield from read_container(first, literal))
    character = first
    while character in BARE:
        literal.append(character)
        character = yield
    return character


def read_string(literal: list[str]) -> Characters:
    """Append a string's text, from its opening quote, already read, to the closing one."""
    literal.append('"')
    while True:
        while run := (yield _PLAIN):
            literal.append(run)
        character = yield
        if character < " ":
            refuse("a string has a control character")
        literal.append(character)
        if character == '"':
            return
        if character == "\\":
            literal.append((yield))


def read_container(first: str, literal: list[str]) -> Characters:
    """Append the text of an object or a list, whose opening bracket was already read."""
    literal.append(first)
    expected = [CLOSERS[first]]
    while expected:
        character = yield
        if character == '"':
            yield from read_string(literal)
            continue
        if character in CLOSERS:
            expected.append(CLOSERS[character])
        elif character in "]}":
            if character != expected.pop():
                refuse("brackets do not match")
        elif character not in BARE and character not in BLANKS and character not in ",:":
            refuse("the text is not JSON")
        if len(expected) > MAX_DEPTH:
            refuse("values are nested too deeply")
        literal.append(character)


def parse(literal: list[str]) -> Any:
    """Return the value of a JSON text in pieces, with whole numbers as floats of any digits.

    Raises:
        BrokenCallError: It is no JSON.
    """
    try:
        return json.loads("".join(literal), parse_int=float, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BrokenCallError(str(error)) from error


def refuse(reason: str) -> NoReturn:
    """Raise a BrokenCallError."""
    raise BrokenCallError(reason)
