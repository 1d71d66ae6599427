"""Glushkov automata of regular expressions, and what two of them match alike.

The states of such an automaton are the positions of an expression: each is a class of characters,
and has the positions that may follow it (V. M. Glushkov, "The abstract theory of automata", 1961).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import NamedTuple

from quire_structured_output.gbnf.gbnf_work import Work
from quire_structured_output.schemas.ecma_regex import Ranges


@dataclass(frozen=True, slots=True)
class Fragment:
    """Positions at which a part of an expression begins and ends."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    is_nullable: bool = True


class Automaton:
    """Positions of one expression, which is built part by part.

    Attributes:
        classes: Characters of each position.
        follow: Positions that may follow each one.
        first: Positions with which a match begins.
        last: Positions with which a match may end.
        more: For each position, the first bytes of the characters that may follow it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.classes: list[Ranges] = []
        self.follow: list[set[int]] = []
        self.first: tuple[int, ...] = ()
        self.last: frozenset[int] = frozenset()
        self.more: list[int] = []

    def ends_with(self, whole: Fragment) -> None:
        """Complete the automaton: `whole` is its expression."""
        self.first = whole.first
        self.last = frozenset(whole.last)
        octets = [first_bytes(each) for each in self.classes]
        self.more = [reduce(or_, (octets[i] for i in each), 0) for each in self.follow]

    def begins(self) -> int:
        """Return the first bytes of its matches, as bits."""
        return reduce(or_, (first_bytes(self.classes[i]) for i in self.first), 0)

    def characters(self, ranges: Ranges) -> Fragment:
        """Return a new position."""
        self.classes.append(ranges)
        self.follow.append(set())
        new = (len(self.classes) - 1,)
        return Fragment(new, new, is_nullable=False)

    def sequence(self, parts: list[Fragment]) -> Fragment:
        """Return parts one after another."""
        return reduce(self._pair, parts, Fragment())

    def alternatives(self, parts: list[Fragment]) -> Fragment:
        """Return one of some parts."""
        return Fragment(
            tuple(i for part in parts for i in part.first),
            tuple(i for part in parts for i in part.last),
            any(part.is_nullable for part in parts),
        )

    def repeated(self, copies: list[Fragment], low: int, *, is_open: bool) -> Fragment:
        """Return at least `low` copies, one after another; the last may occur again if it is open.

        x{1,3} is x(x(x)?)?, which begins in one way wherever it can go on.
        """
        if is_open:
            self._link(copies[-1].last, copies[-1].first)
        found = Fragment()
        for i in reversed(range(len(copies))):
            found = self._pair(copies[i], found)
            if i >= low:
                found = replace(found, is_nullable=True)
        return found

    def _pair(self, left: Fragment, right: Fragment) -> Fragment:
        self._link(left.last, right.first)
        self._work.charge(len(left.first) + len(right.last))
        return Fragment(
            left.first + (right.first if left.is_nullable else ()),
            right.last + (left.last if right.is_nullable else ()),
            left.is_nullable and right.is_nullable,
        )

    def _link(self, last: Iterable[int], first: tuple[int, ...]) -> None:
        for i in last:
            self._work.charge(len(first))
            self.follow[i].update(first)


class Comparison(NamedTuple):
    """Texts of two expressions that are alike.

    Attributes:
        is_common: Whether both match one text.
        more: First bytes with which the second may go on after a text that the first matches.
        num_beside: Most positions of the second that may be reached beside one of the first.
    """

    is_common: bool
    more: int
    num_beside: int


def compared(left: Automaton, right: Automaton, work: Work) -> Comparison:
    """Compare two automata by the pairs of positions that one text reaches."""
    is_common, more = False, 0
    seen: set[tuple[int, int]] = set()
    pending: list[tuple[Iterable[int], Iterable[int]]] = [(left.first, right.first)]
    while pending:
        lefts, rights = pending.pop()
        for i in lefts:
            for j in rights:
                work.charge(1)
                if (i, j) in seen or not _overlap(left.classes[i], right.classes[j], work):
                    continue
                seen.add((i, j))
                pending.append((left.follow[i], right.follow[j]))
                if i in left.last:
                    is_common = is_common or j in right.last
                    more |= right.more[j]
    beside = Counter(i for i, _ in seen)
    return Comparison(is_common, more, max(beside.values(), default=0))


def first_bytes(ranges: Ranges) -> int:
    """Return the first bytes of characters in UTF-8, as bits; they are in order of code points."""
    found = 0
    for low, high in ranges:
        start = low if low < 128 else chr(low).encode()[0]
        end = high if high < 128 else chr(high).encode()[0]
        found |= (1 << (end + 1)) - (1 << start)
    return found


def _overlap(left: Ranges, right: Ranges, work: Work) -> bool:
    """Return whether sorted ranges have a character in common."""
    i = j = 0
    while i < len(left) and j < len(right):
        work.charge(1)
        if left[i][1] < right[j][0]:
            i += 1
        elif right[j][1] < left[i][0]:
            j += 1
        else:
            return True
    return False
