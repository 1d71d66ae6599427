"""Faults of schemas that show in their texts: patterns and references that nothing can read.

Schemas are written for many dialects of regular expressions. So a pattern is at fault only if none
of them reads it: with a bracket that is not closed, or a backslash at its end.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[(?:\^[^\[\]]+|[^\[\]^][^\[\]]*)\]")  # one that is a whole class everywhere
_CHARACTER = "x"
_INDEX = re.compile("[0-9]{1,9}")
_QUOTE, _COMMENT = r"\Q", "#"  # of dialects in which brackets may be in them


def pattern_fault(pattern: str) -> str | None:
    """Return why no dialect reads a regular expression; None if one may."""
    if _QUOTE in pattern or _COMMENT in pattern:
        return None
    plain = _ESCAPE.sub(_CHARACTER, pattern)
    if plain.endswith("\\"):
        return "ends with a backslash"
    if "]" not in plain[plain.find("[") :] and "[" in plain:
        return "has a '[' that is not closed"
    plain = _CLASS.sub(_CHARACTER, plain)
    if "[" in plain:
        return None
    depth = 0
    for bracket in re.findall("[()]", plain):
        depth += 1 if bracket == "(" else -1
        if depth < 0:
            return "has a ')' that nothing opens"
    return "has a '(' that is not closed" if depth else None


def resolves(reference: str, schema: Mapping[str, Any]) -> bool:
    """Whether a reference to a place in a schema (`#/$defs/City`) is to one that is there.

    References of other kinds are not looked at.
    """
    if not reference.startswith("#/"):
        return True
    return any(_is_place(pointer[2:], schema) for pointer in (reference, unquote(reference)))


def _is_place(pointer: str, schema: Any) -> bool:
    """Whether a JSON pointer (RFC 6901) leads to a part of a schema."""
    part = schema
    for token in pointer.split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and key in part:
            part = part[key]
        elif isinstance(part, list) and _INDEX.fullmatch(key) and int(key) < len(part):
            part = part[int(key)]
        else:
            return False
    return True
