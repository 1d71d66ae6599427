r"""Regular expressions of JSON values, from which the regex of a schema is built.

Every function returns an expression that can be concatenated with others. Whitespace is at most one
blank, so that a model cannot generate blanks without end. Numbers have at most two digits of
exponent, so that all are finite. Strings have no `\u` escapes. The syntax is that of Rust's
`regex` crate, which outlines_core compiles.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

BLANK = "[ ]?"
CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
STRING = f'"{CHARACTER}*"'
NUMBER = r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)"
BOOLEAN = "(?:true|false)"
NULL = "null"

_SCALAR = f"{STRING}|{NUMBER}|{BOOLEAN}|{NULL}"

_HH_MM_SS = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = (  # the last two digits, or for a century the first two, are a multiple of 4
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_MAILBOX = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"

FORMATS = {
    "date": _DATE,
    "time": _HH_MM_SS + _OFFSET,
    "date-time": f"{_DATE}T{_HH_MM_SS}{_OFFSET}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "email": rf"{_MAILBOX}(?:\.{_MAILBOX})?@(?:{_LABEL}\.){{1,3}}[a-zA-Z]{{2,16}}",
}


def quoted(expression: str) -> str:
    """Return the expression of a string whose content matches `expression`."""
    return f'"(?:{expression})"'


def string_of(min_length: int, max_length: int | None) -> str:
    """Return the expression of a string by its length; None for no maximum."""
    return f'"{CHARACTER}{_times(min_length, max_length)}"'


def one_of(alternatives: Sequence[str]) -> str:
    """Return the expression of any of the alternatives."""
    return f"(?:{'|'.join(alternatives)})"


def literal(value: Any) -> str:
    """Return the expression of exactly this value, with optional blanks between its parts."""
    if isinstance(value, dict):
        return closed_object([(name, literal(part), True) for name, part in value.items()])
    if isinstance(value, list):
        return tuple_of([literal(part) for part in value])
    return re.escape(json.dumps(value, ensure_ascii=False, allow_nan=False))


def closed_object(members: Sequence[tuple[str, str, bool]]) -> str:
    """Return the expression of an object with these members in this order.

    Args:
        members: Name, expression of the value, and whether the member is required.
    """
    pairs = [(f"{literal(name)}:{BLANK}{value}", needed) for name, value, needed in members]
    return rf"\{{{BLANK}{members_of(pairs, f',{BLANK}')}{BLANK}\}}"


def length_of_object(members: Sequence[tuple[str, str, bool]]) -> int:
    """Return an upper bound of the length of `closed_object`, which repeats optional members."""
    lengths = [2 * len(json.dumps(name)) + len(value) + 32 for name, value, _ in members]
    if any(needed for _, _, needed in members):
        return sum(lengths)
    return sum(i * length for i, length in enumerate(lengths, 1))


def members_of(pairs: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return the expression of members, with the separator between those that are present.

    The first required one is the pivot: those before it have the separator behind them, those after
    it have it in front. Without a required one any may be the first, which makes the length grow
    with the square of their number.

    Args:
        pairs: Expression of each member, and whether it is required.
        separator: Expression of the separator.
    """
    pivot = next((i for i, (_, needed) in enumerate(pairs) if needed), None)
    if pivot is None:
        starts = [pair + _followers(pairs[i + 1 :], separator) for i, (pair, _) in enumerate(pairs)]
        return f"{one_of(starts)}?" if starts else ""
    before = "".join(f"(?:{pair}{separator})?" for pair, _ in pairs[:pivot])
    return before + pairs[pivot][0] + _followers(pairs[pivot + 1 :], separator)


def _followers(pairs: Sequence[tuple[str, bool]], separator: str) -> str:
    return "".join(f"(?:{separator}{pair}){'' if needed else '?'}" for pair, needed in pairs)


def open_object(value: str) -> str:
    """Return the expression of an object with any names, whose values match `value`."""
    pair = f"{STRING}:{BLANK}{value}"
    return rf"\{{{BLANK}(?:{pair}(?:,{BLANK}{pair})*{BLANK})?\}}"


def array_of(item: str, min_items: int, max_items: int | None) -> str:
    """Return the expression of an array by its number of items; None for no maximum."""
    if max_items == 0:
        return rf"\[{BLANK}\]"
    rest = _times(max(min_items - 1, 0), None if max_items is None else max_items - 1)
    items = f"(?:{item}(?:,{BLANK}{item}){rest}{BLANK})"
    return rf"\[{BLANK}{items}{'' if min_items else '?'}\]"


def tuple_of(items: Sequence[str], rest: str = "") -> str:
    """Return the expression of an array of these items, and then `rest` with its own commas."""
    return rf"\[{BLANK}{f',{BLANK}'.join(items)}{rest}{BLANK}\]"


def more_items(item: str, at_least: int, at_most: int | None) -> str:
    """Return the expression of further items of a tuple, each with a comma in front."""
    return f"(?:,{BLANK}{item}){_times(at_least, at_most)}"


@cache
def any_value(depth: int) -> str:
    """Return the expression of any JSON value nested at most `depth` deep."""
    if depth == 0:
        return f"(?:{_SCALAR})"
    inner = any_value(depth - 1)
    return f"(?:{_SCALAR}|{array_of(inner, 0, None)}|{open_object(inner)})"


def _times(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    return f"{{{low},{'' if high is None else high}}}"
