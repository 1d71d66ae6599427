"""Whether the header of a user's format always has a name."""

import re
from itertools import accumulate

_OPENING = "(?P<name>"
_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a class
_MAY_BE_MISSING = re.compile(r"[?*]|\{0*,|\{0+[,}]")


def check_header(header: str) -> None:
    """Raise a ValueError if a header is no pattern, or its name may be missing or empty.

    What is nested in another group is seen with the call only, which is then text.
    """
    try:
        pattern = re.compile(header)
    except re.error as error:
        raise ValueError(f"header is no regular expression: {error}") from error
    if "name" not in pattern.groupindex:
        raise ValueError("header must have a group (?P<name>...)")
    start = header.index(_OPENING)
    end = _end_of_group(header, start)
    if _MAY_BE_MISSING.match(header, end):
        raise ValueError("the group name of header must not be optional")
    if _may_be_empty(header[start + len(_OPENING) : end - 1]):
        raise ValueError("the group name of header must not match an empty text")


def _end_of_group(pattern: str, start: int) -> int:
    """Return the place behind a group that begins at a place."""
    blanked = _LITERAL.sub(_dashes, pattern[start:])
    steps = ({"(": 1, ")": -1}.get(character, 0) for character in blanked)
    return start + [*accumulate(steps)].index(0) + 1


def _dashes(found: re.Match[str]) -> str:
    return "-" * len(found.group())


def _may_be_empty(pattern: str) -> bool:
    try:
        return re.fullmatch(pattern, "") is not None
    except re.error:  # it refers to a group outside
        return False
