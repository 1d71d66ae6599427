"""Whether the header of a user's format can be matched, and always has a name."""

import re
from itertools import accumulate

from quire_tool_parsers.response_template.pattern import Pattern

_NAME = re.compile(r"\(\?P?<name>")
_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a class
_MAY_BE_MISSING = re.compile(r"[?*]|\{0*,|\{0+[,}]")


def check_header(header: str) -> None:
    """Raise a ValueError if a header is no pattern for quire, or its name may be missing or empty.

    What is nested in another group is seen with the call only, which is then text.
    """
    try:
        Pattern(header)
    except ValueError as error:
        raise ValueError(f"header is no regular expression that quire takes: {error}") from error
    syntax = _LITERAL.sub(_dashes, header)
    if "(?=" in syntax:
        raise ValueError("header must not have (?=...), for nothing is behind it")
    name = _NAME.search(syntax)
    if name is None:
        raise ValueError("header must have a group (?P<name>...)")
    end = _end_of_group(syntax, name.start())
    if _MAY_BE_MISSING.match(header, end):
        raise ValueError("the group name of header must not be optional")
    if Pattern(header[name.end() : end - 1]).full_match("") is not None:
        raise ValueError("the group name of header must not match an empty text")


def _end_of_group(syntax: str, start: int) -> int:
    """Return the place behind a group that begins at a place."""
    steps = ({"(": 1, ")": -1}.get(character, 0) for character in syntax[start:])
    return start + [*accumulate(steps)].index(0) + 1


def _dashes(found: re.Match[str]) -> str:
    return "-" * len(found.group())
