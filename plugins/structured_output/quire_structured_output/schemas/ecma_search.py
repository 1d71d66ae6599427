"""Search of an ECMA-262 regex in a text, with bounded work: no regex of a client backtracks.

The set of positions that a part of the expression can reach is computed from the set where it can
begin, so each part costs at most the square of the text's length, however parts are nested.
"""

import unicodedata
from collections.abc import Callable

from quire.errors import GrammarError
from quire_structured_output.schemas.ecma_regex import CharacterClass, Group, Item, Parser

MAX_WORK = 20_000  # of one search in what is not a client's own check


def is_found(expression: str, text: str, where: str, charge: Callable[[int], None]) -> bool:
    """Return whether an expression is found somewhere in a text.

    Args:
        expression: Expression of ECMA-262.
        text: Text to search.
        where: Name of the expression in error messages.
        charge: Function that is called with the work of each step; it may raise.

    Raises:
        GrammarError: The expression is not valid, or not regular.
    """
    search = _Search(text, charge)
    return bool(search.group(Parser(expression, where).parse(), set(range(len(text) + 1))))


class WrittenRegexes:
    """Searches of expressions as `whole_match` writes them, each of which is parsed once.

    A search that takes too much work has no answer.

    Args:
        max_total_work: Work of all searches after which none has an answer; None: no limit.
    """

    def __init__(self, max_total_work: int | None = None) -> None:
        self._parsed: dict[str, Group] = {}
        self._max_total_work = max_total_work
        self._work = 0

    def is_found(self, expression: str, text: str) -> bool | None:
        """Return whether an expression is found in a text; None: it is not known."""
        most = self._work + MAX_WORK
        if self._max_total_work is not None:
            most = min(most, self._max_total_work)
        if self._work + len(text) > most:
            return None
        if expression not in self._parsed:
            self._work += len(expression) // 8
            ecma = expression.replace("\\x{", "\\u{")
            self._parsed[expression] = Parser(ecma, "a written expression").parse()

        def charge(work: int) -> None:
            self._work += work
            if self._work > most:
                raise _TooMuchWorkError

        search = _Search(text, charge)
        try:
            return bool(search.group(self._parsed[expression], set(range(len(text) + 1))))
        except _TooMuchWorkError:
            return None


class _TooMuchWorkError(GrammarError):
    """A search has taken too much work."""

    def __init__(self) -> None:
        super().__init__("a regular expression takes too much work to match")


class _Search:
    """Positions in one text."""

    def __init__(self, text: str, charge: Callable[[int], None]) -> None:
        self._text = text
        self._charge = charge

    def group(self, group: Group, starts: set[int]) -> set[int]:
        """Return the ends of the matches of a group that begin at `starts`."""
        ends: set[int] = set()
        for items in group.alternatives:
            positions = starts
            for item in items:
                positions = self._item(item, positions)
            ends |= positions
        return ends

    def _item(self, item: Item, starts: set[int]) -> set[int]:
        ends = starts
        for _ in range(item.low):
            before, ends = ends, self._once(item.what, ends)
            if not ends or ends == before:
                break
        found, new = set(ends), ends
        num_more = len(self._text) if item.high is None else item.high - item.low
        for _ in range(num_more):
            new = self._once(item.what, new) - found
            if not new:
                break
            found |= new
        return found

    def _once(self, what: CharacterClass | Group | str, starts: set[int]) -> set[int]:
        self._charge(1 + len(starts))
        if isinstance(what, Group):
            return self.group(what, starts)
        if isinstance(what, str):
            return starts & {0 if what == "^" else len(self._text)}
        return {
            start + 1
            for start in starts
            if start < len(self._text) and is_in(self._text[start], what)
        }


def is_in(char: str, given: CharacterClass) -> bool:
    """Return whether a character is in a class."""
    is_listed = any(low <= ord(char) <= high for low, high in given.ranges) or any(
        _has_category(char, name) for name in given.categories
    )
    return is_listed != given.is_negated


def _has_category(char: str, name: str) -> bool:
    """Return whether a character is of a general category; `^` before it: of any other."""
    is_of = unicodedata.category(char).startswith(name.removeprefix("^"))
    return is_of != name.startswith("^")
