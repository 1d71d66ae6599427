"""Parser of stop regexes: the syntax of Python's `re`, without what needs backtracking.

The result is a tree of the repetitions and alternatives. What one character must be (a literal, a
class, an escape) is left to `re` itself, which decides about a single character in constant time.
"""

import re
from dataclasses import dataclass

from quire.errors import InvalidRequestError

MAX_STATES = 256  # a step over one character visits each at most once
MAX_DEPTH = 50
UNBOUNDED = -1

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}
_BOUNDS = re.compile(r"\{(\d{0,9})(,?)(\d{0,9})\}", re.ASCII)
_LEADING_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")
_GROUP_NAME = re.compile(r"\?P<\w+>")


@dataclass(frozen=True, slots=True)
class Character:
    """One character, decided by `re`."""

    test: re.Pattern[str]
    num_states: int = 1


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on the characters around a position: one of `^`, `$`, `b`, `B` and `A`."""

    kind: str
    num_states: int = 1


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts in order; no parts match the empty text."""

    parts: tuple["Node", ...]
    num_states: int


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Parts of which one matches."""

    parts: tuple["Node", ...]
    num_states: int


@dataclass(frozen=True, slots=True)
class Repetition:
    """A part `low` to `high` times; `high` may be `UNBOUNDED`."""

    part: "Node"
    low: int
    high: int
    num_states: int


Node = Character | Assertion | Sequence | Alternatives | Repetition


def parse_stop_regex(pattern: str) -> Node:
    """Parse a stop regex, in time linear in its length.

    Raises:
        InvalidRequestError: It is no regex, uses an unsupported construct, or has too many states.
    """
    node = _Parser(pattern).parse()
    if node.num_states > MAX_STATES:
        raise refused(
            pattern, f"its repetitions unfold to {node.num_states} states; it may have {MAX_STATES}"
        )
    return node


def refused(pattern: str, reason: str) -> InvalidRequestError:
    """Return the error of a stop regex that cannot be used."""
    shown = pattern if len(pattern) <= 100 else pattern[:97] + "..."
    return InvalidRequestError(
        f"the stop regex {shown!r} cannot be used: {reason}", param="stop_regex"
    )


class _Parser:
    """Recursive descent over the pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._flags = re.NOFLAG

    def parse(self) -> Node:
        leading = _LEADING_FLAGS.match(self._pattern)
        if leading is not None:
            self._at = leading.end()
            for letter in leading[1]:
                if letter not in _FLAGS:
                    raise self._refused(f"the flag {letter!r} is not supported; i, m and s are")
                self._flags |= _FLAGS[letter]
        node = self._alternatives()
        if self._at < len(self._pattern):
            raise self._refused(f"there is a ) without ( at position {self._at}")
        return node

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        return Alternatives(tuple(parts), 1 + sum(part.num_states for part in parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        if len(parts) == 1:
            return parts[0]
        return Sequence(tuple(parts), max(1, sum(part.num_states for part in parts)))

    def _repeated(self, part: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return part
        low, high = bounds
        if high != UNBOUNDED and low > high:
            raise self._refused(f"the repetition {{{low},{high}}} has a minimum above its maximum")
        if isinstance(part, Assertion):
            raise self._refused("an assertion is repeated")
        self._takes("?")  # lazy: the text ends at the first match in either case
        if self._at < len(self._pattern) and (self._next_is("+") or self._bounds() is not None):
            raise self._refused(f"there is a repetition of a repetition at position {self._at}")
        num_optional = 1 if high == UNBOUNDED else high - low
        num_states = low * part.num_states + num_optional * (part.num_states + 1)
        return Repetition(part, low, high, max(1, num_states))

    def _bounds(self) -> tuple[int, int] | None:
        """Return the bounds of a quantifier, and skip it; None if there is none."""
        simple = {"*": (0, UNBOUNDED), "+": (1, UNBOUNDED), "?": (0, 1)}
        for symbol, bounds in simple.items():
            if self._takes(symbol):
                return bounds
        found = _BOUNDS.match(self._pattern, self._at)
        if found is None or not (found[1] or found[3]):
            return None  # as in `re`, a brace that is no quantifier is a character
        self._at = found.end()
        low = int(found[1] or 0)
        if not found[2]:
            return low, low
        return low, int(found[3]) if found[3] else UNBOUNDED

    def _atom(self) -> Node:
        start, symbol = self._at, self._pattern[self._at]
        if symbol == "(":
            return self._group()
        if symbol in "*+?":
            raise self._refused(f"there is nothing to repeat at position {start}")
        if symbol == "[":
            return self._class()
        if symbol == "\\":
            return self._escape()
        self._at += 1
        if symbol == "^":
            return Assertion("^" if self._flags & re.MULTILINE else "A")
        if symbol == "$":
            if not self._flags & re.MULTILINE:
                raise self._refused(
                    "$ is the end of a text, which is not known while it is generated; with (?m) "
                    "it is the end of a line"
                )
            return Assertion("$")
        return self._character(symbol if symbol == "." else re.escape(symbol))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"it is nested deeper than {MAX_DEPTH} groups")
        start = self._at
        self._at += 1
        if self._next_is("?"):
            name = _GROUP_NAME.match(self._pattern, self._at)
            if name is not None:
                self._at = name.end()
            elif self._pattern.startswith("?:", self._at):
                self._at += 2
            else:
                raise self._refused(
                    f"the group at position {start} is not supported: lookaround, conditions, "
                    "comments and flags inside a regex are not; (?:...) and (?P<name>...) are"
                )
        node = self._alternatives()
        if not self._takes(")"):
            raise self._refused(f"the group at position {start} has no end")
        self._depth -= 1
        return node

    def _class(self) -> Node:
        """Read a class; what `re` warns about is escaped."""
        start, pieces = self._at, ["["]
        self._at += 1
        if self._takes("^"):
            pieces.append("^")
        is_first = True
        while is_first or not self._next_is("]"):
            if self._at >= len(self._pattern):
                raise self._refused(f"the class at position {start} has no end")
            symbol = self._pattern[self._at]
            if symbol == "\\":
                pieces.append(self._pattern[self._at : self._at + 2])
                self._at += 2
            else:
                if self._pattern.startswith("--", self._at):
                    raise self._refused(f"-- in the class at position {start}; escape a hyphen")
                pieces.append(symbol if symbol.isalnum() or symbol in "-_" else re.escape(symbol))
                self._at += 1
            is_first = False
        self._at += 1
        return self._character("".join(pieces) + "]")

    def _escape(self) -> Node:
        start = self._at
        letter = self._pattern[start + 1 : start + 2]
        if letter in ("b", "B", "A"):
            self._at += 2
            return Assertion(letter)
        if letter == "Z":
            raise self._refused(r"\Z is the end of a text, which is not known before it ends")
        if letter.isdigit() and letter != "0":
            raise self._refused(f"the backreference at position {start} is not supported")
        self._at += 2 + _NUM_DIGITS.get(letter, 0)
        return self._character(self._pattern[start : self._at])

    def _character(self, text: str) -> Character:
        try:
            return Character(re.compile(text, self._flags))
        except (re.error, OverflowError, ValueError) as error:
            raise self._refused(f"{text!r} is no character of a regex: {error}") from None

    def _next_is(self, symbol: str) -> bool:
        return self._pattern.startswith(symbol, self._at)

    def _takes(self, symbol: str) -> bool:
        is_next = self._next_is(symbol)
        self._at += len(symbol) * is_next
        return is_next

    def _refused(self, reason: str) -> InvalidRequestError:
        return refused(self._pattern, reason)
