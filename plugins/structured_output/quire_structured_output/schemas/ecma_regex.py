r"""Regular expressions of ECMA-262, which `pattern` in a JSON schema is, for engines of automata.

An expression is parsed and written again with explicit characters, so that no engine reads it in
its own way: `\d` is [0-9] and not a class of Unicode, `.` excludes four line terminators, `$` is
the very end. It is written to match whole texts: where it is not anchored, anything may precede or
follow. What an automaton cannot do (lookaround, backreferences, word boundaries) is refused by
name, and so is what has several readings, such as an escaped letter without a meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import GrammarError

MAX_REGEX_LENGTH = 32 * 1024
MAX_DEPTH = 50  # of groups
MAX_REPETITION = 100_000
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
DIGITS = ((0x30, 0x39),)
WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_ENDS = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
CATEGORIES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Nonspacing_Mark": "Mn",
    "Number": "N", "Decimal_Number": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
    "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs", "Other": "C",
    "Control": "Cc",
}  # fmt: skip
_QUANTIFIER = re.compile(r"\{(\d+)(,(\d*))?\}")
_NAME = re.compile(r"\(\?<[A-Za-z_$][\w$]*>")
_GROUPS = {
    "(?=": "a lookahead",
    "(?!": "a lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a lookbehind",
}

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """A set of characters: ranges, and general categories of Unicode."""

    ranges: Ranges
    categories: tuple[str, ...] = ()
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives, each a sequence."""

    alternatives: tuple[tuple[Item, ...], ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a sequence, `low` to `high` times; None: no maximum."""

    what: CharacterClass | Group | str  # "^" or "$"
    low: int = 1
    high: int | None = 1


ANYTHING: Ranges = ((0, LAST),)


def whole_match(expression: str, where: str, *, around: Ranges = ANYTHING) -> str:
    r"""Return an expression that matches the texts in which an ECMA-262 one is found.

    Args:
        expression: Expression of ECMA-262.
        where: Name of the expression in error messages.
        around: Characters that may be before and after what is found, where it is not anchored;
            none: it must be the whole text.

    Raises:
        GrammarError: It is not valid, too long, or not regular.
    """
    if len(expression) > MAX_REGEX_LENGTH:
        raise GrammarError(
            f"{where} has {len(expression)} characters; at most {MAX_REGEX_LENGTH} are allowed"
        )
    parsed = Parser(expression, where).parse()
    return _Writer(where, around).write(parsed)


def anchored_match(expression: str, where: str) -> str:
    """Return `whole_match` of an expression between anchors, as a normal form has it.

    Args:
        expression: Expression of ECMA-262.
        where: Name of the expression in error messages.

    Raises:
        GrammarError: It is not valid, too long, or not regular.
    """
    return f"^(?:{whole_match(expression, where)})$"


class Parser:
    """Parser of one expression; `where` names it in error messages."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._at = 0
        self._depth = 0

    def parse(self) -> Group:
        """Return the expression as a group.

        Raises:
            GrammarError: It is not valid, or not regular.
        """
        group = self._alternatives()
        if self._at < len(self._text):
            raise self._invalid(f"nothing opens the ')' at character {self._at}")
        return group

    def _alternatives(self) -> Group:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"groups nested more than {MAX_DEPTH} deep")
        found: list[tuple[Item, ...]] = []
        items: list[Item] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                found.append(tuple(items))
                items = []
            else:
                items.append(self._item())
        self._depth -= 1
        return Group((*found, tuple(items)))

    def _item(self) -> Item:
        char = self._text[self._at]
        if char in "^$":
            self._at += 1
            if self._peek_quantifier():
                raise self._refused(f"a repeated {char}")
            return Item(char)
        if char in "*+?" or self._peek_quantifier():
            raise self._invalid(f"nothing is before the {char!r} at character {self._at}")
        what = self._atom(char)
        return Item(what, *self._quantifier())

    def _atom(self, char: str) -> CharacterClass | Group:
        if char == "(":
            return self._group()
        self._at += 1
        if char == "[":
            return self._class()
        if char == ".":
            return CharacterClass(LINE_ENDS, is_negated=True)
        if char == "\\":
            return self._escape(in_class=False)
        return _one(ord(char))

    def _group(self) -> Group:
        for opening, name in _GROUPS.items():
            if self._text.startswith(opening, self._at):
                raise self._refused(f"{name} ('{opening}' at character {self._at})")
        named = _NAME.match(self._text, self._at)
        start = self._at
        if self._text.startswith("(?:", self._at):
            self._at += 3
        elif named:
            self._at = named.end()
        elif self._text.startswith("(?", self._at):
            raise self._refused(f"'{self._text[start : start + 3]}', which ECMA-262 does not have")
        else:
            self._at += 1
        group = self._alternatives()
        if self._at >= len(self._text):
            raise self._invalid(f"the '(' at character {start} is not closed")
        self._at += 1
        return group

    def _peek_quantifier(self) -> re.Match[str] | str | None:
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            return self._text[self._at]
        return _QUANTIFIER.match(self._text, self._at)

    def _quantifier(self) -> tuple[int, int | None]:
        found = self._peek_quantifier()
        if found is None:
            return 1, 1
        low, high = 0, None
        if isinstance(found, str):
            self._at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[found]
        else:
            self._at = found.end()
            low = self._count(found[1])
            high = low if found[2] is None else self._count(found[3]) if found[3] else None
            if high is not None and high < low:
                raise self._invalid(f"the numbers of {found[0]} are out of order")
        if self._at < len(self._text) and self._text[self._at] == "?":
            self._at += 1  # lazy: the same texts match
        if self._peek_quantifier():
            raise self._invalid(f"nothing to repeat at character {self._at}")
        return low, high

    def _count(self, digits: str) -> int:
        if len(digits) > 9 or int(digits) > MAX_REPETITION:
            raise self._refused(f"a repetition of more than {MAX_REPETITION}")
        return int(digits)

    def _class(self) -> CharacterClass:
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        categories: list[str] = []
        while not self._text.startswith("]", self._at):
            first = self._class_atom()
            low = _single(first)
            is_range = self._text.startswith("-", self._at) and not self._text.startswith(
                "-]", self._at
            )
            if low is None or not is_range:
                ranges += _positive(first)
                categories += first.categories
                continue
            self._at += 1
            last = self._class_atom()
            high = _single(last)
            if high is None:  # the dash is a character then
                ranges += [(low, low), (0x2D, 0x2D), *_positive(last)]
                categories += last.categories
            elif high < low:
                raise self._invalid(f"a range is out of order at character {self._at}")
            else:
                ranges.append((low, high))
        self._at += 1
        return CharacterClass(tuple(ranges), tuple(categories), is_negated)

    def _class_atom(self) -> CharacterClass:
        if self._at >= len(self._text):
            raise self._invalid("a '[' is not closed")
        char = self._text[self._at]
        self._at += 1
        return self._escape(in_class=True) if char == "\\" else _one(ord(char))

    def _escape(self, *, in_class: bool) -> CharacterClass:
        if self._at >= len(self._text):
            raise self._invalid("it ends with a backslash")
        char = self._text[self._at]
        self._at += 1
        if char in "dws":
            return CharacterClass({"d": DIGITS, "w": WORD, "s": SPACE}[char])
        if char in "DWS":
            return CharacterClass(complement({"D": DIGITS, "W": WORD, "S": SPACE}[char]))
        if char in CONTROLS:
            return _one(CONTROLS[char])
        if char == "b" and in_class:
            return _one(0x08)
        if char in "bB":
            raise self._refused(f"a word boundary (\\{char})")
        if char == "0" and not self._text[self._at : self._at + 1].isdigit():
            return _one(0)
        if char.isdigit() or char == "k":
            raise self._refused(f"a backreference (\\{char})")
        if char == "c" and re.match("[A-Za-z]", self._text[self._at :]):
            self._at += 1
            return _one(ord(self._text[self._at - 1]) % 32)
        if char in "pP":
            return self._category(char)
        if char in "xu":
            return _one(self._code_point(char))
        if char.isascii() and char.isalpha():
            raise self._refused(f"the escape \\{char}, which ECMA-262 does not have")
        return _one(ord(char))

    def _code_point(self, kind: str) -> int:
        pattern = {"x": r"([0-9A-Fa-f]{2})", "u": r"([0-9A-Fa-f]{4})|\{0*([0-9A-Fa-f]{1,6})\}"}
        found = re.compile(pattern[kind]).match(self._text, self._at)
        if found is None:
            raise self._refused(f"the escape \\{kind} without a code point")
        self._at = found.end()
        code = int(next(filter(None, found.groups())), 16)
        low = re.compile(r"\\u(D[C-F][0-9A-F]{2})", re.IGNORECASE).match(self._text, self._at)
        if 0xD800 <= code < 0xDC00 and low:
            self._at = low.end()
            return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if SURROGATES[0] <= code <= SURROGATES[1] or code > LAST:
            raise self._refused(f"the code point {code:X}, which no text has")
        return code

    def _category(self, kind: str) -> CharacterClass:
        found = re.compile(r"\{(?:gc=|General_Category=)?(\w+)\}").match(self._text, self._at)
        name = CATEGORIES.get(found[1], found[1]) if found else ""
        if found is None or name not in CATEGORIES.values():
            raise self._refused(f"\\{kind}{self._text[self._at : self._at + 20]}")
        self._at = found.end()
        return CharacterClass((), (("^" if kind == "P" else "") + name,))

    def _refused(self, what: str) -> GrammarError:
        return GrammarError(f"{self._where} uses {what}, which is not supported")

    def _invalid(self, why: str) -> GrammarError:
        return GrammarError(f"{self._where} is not a valid regular expression: {why}")


class _Writer:
    def __init__(self, where: str, around: Ranges) -> None:
        self._where = where
        self._around = CharacterClass(around)

    def write(self, group: Group, *, opens: bool = True, closes: bool = True) -> str:
        """Write alternatives at the beginning (`opens`) or the end (`closes`) of the expression."""
        return "|".join(self._sequence(items, opens, closes) for items in group.alternatives)

    def _sequence(self, items: tuple[Item, ...], opens: bool, closes: bool) -> str:
        items = _without_repeated_anchors(items)
        before = after = ""
        if opens and items and items[0].what == "^":
            items, opens = items[1:], False
        elif opens and not (items and _has_anchor(items[0].what, 0)):
            before, opens = self._anything(), False
        if closes and items and items[-1].what == "$":
            items, closes = items[:-1], False
        elif closes and not (items and _has_anchor(items[-1].what, -1)):
            after, closes = self._anything(), False
        last = len(items) - 1
        parts = [
            self._item(item, opens and index == 0, closes and index == last)
            for index, item in enumerate(items)
        ]
        return before + "".join(parts) + after

    def _item(self, item: Item, opens: bool, closes: bool) -> str:
        if isinstance(item.what, str):
            raise GrammarError(
                f"{self._where} has the anchor {item.what} in the middle, which is not supported"
            )
        if isinstance(item.what, CharacterClass):
            return self._class(item.what) + times(item.low, item.high)
        if (opens or closes) and (item.low, item.high) != (1, 1):
            raise GrammarError(f"{self._where} repeats an anchor, which is not supported")
        inner = self.write(item.what, opens=opens, closes=closes)
        return f"(?:{inner}){times(item.low, item.high)}"

    def _class(self, given: CharacterClass) -> str:
        if not given.categories:
            ranges = complement(given.ranges) if given.is_negated else merged(given.ranges)
            if not ranges:
                raise GrammarError(f"{self._where} has a class that no character is in")
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return self._char(ranges[0][0])
            return f"[{self._ranges(ranges)}]"
        names = "".join(
            rf"\P{{{n[1:]}}}" if n[0] == "^" else rf"\p{{{n}}}" for n in given.categories
        )
        return f"[{'^' if given.is_negated else ''}{self._ranges(merged(given.ranges))}{names}]"

    def _ranges(self, ranges: Ranges) -> str:
        return "".join(
            self._char(low) if low == high else f"{self._char(low)}-{self._char(high)}"
            for low, high in ranges
        )

    def _char(self, code: int) -> str:
        char = chr(code)
        if char.isascii() and char.isalnum():
            return char
        return f"\\x{{{code:x}}}"

    def _anything(self) -> str:
        return self._class(self._around) + "*" if self._around.ranges else ""


def _without_repeated_anchors(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Leave out a `^` after a `^` at the beginning, and a `$` before a `$` at the end."""
    while len(items) > 1 and items[0].what == items[1].what == "^":
        items = items[1:]
    while len(items) > 1 and items[-1].what == items[-2].what == "$":
        items = items[:-1]
    return items


def _has_anchor(what: CharacterClass | Group | str, end: int) -> bool:
    """Return whether an alternative of a group has an anchor at one of its ends: 0 or -1."""
    anchor = "^" if end == 0 else "$"
    if isinstance(what, Group):
        return any(
            each[end].what == anchor or _has_anchor(each[end].what, end)
            for each in what.alternatives
            if each
        )
    return False


def _one(code: int) -> CharacterClass:
    return CharacterClass(((code, code),))


def _single(given: CharacterClass) -> int | None:
    """Return the only character of a class, or None."""
    if given.categories or len(given.ranges) != 1 or given.ranges[0][0] != given.ranges[0][1]:
        return None
    return given.ranges[0][0]


def _positive(given: CharacterClass) -> Ranges:
    return complement(given.ranges) if given.is_negated else given.ranges


def merged(ranges: Ranges) -> Ranges:
    """Return sorted ranges without overlap, and without surrogates."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    parts: list[tuple[int, int]] = []
    for low, high in found:
        parts += [(low, min(high, SURROGATES[0] - 1)), (max(low, SURROGATES[1] + 1), high)]
    return tuple((low, high) for low, high in parts if low <= high)


def complement(ranges: Ranges) -> Ranges:
    """Return sorted ranges of all other characters, without surrogates."""
    found, start = [], 0
    for low, high in merged((*ranges, SURROGATES, (LAST + 1, LAST + 1))):
        found.append((start, low - 1))
        start = high + 1
    gaps = [(low, high) for low, high in found if low <= high]
    if start <= LAST:
        gaps.append((start, LAST))
    return merged(tuple(gaps))


def times(low: int, high: int | None) -> str:
    """Return the quantifier for `low` to `high` times; None: no maximum."""
    if (low, high) == (1, 1):
        return ""
    short: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in short:
        return short[low, high]
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
