"""Terminals that may begin a text of a grammar, and those that may follow each terminal."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quire_structured_output.gbnf.gbnf_grammar import Grammar, Repeat, Sequence
from quire_structured_output.gbnf.gbnf_work import Work


class Leaf(NamedTuple):
    """A part that is one terminal: its first bytes, as bits, and whether it may be left out."""

    begins: int
    is_nullable: bool


class Flow:
    """Sets of terminals, as bits by the order of `leaves`.

    Args:
        grammar: The grammar.
        start: Node of what is read.
        leaves: Nodes that are terminals.
        work: Work to charge.

    Attributes:
        start: Terminals that may begin a text.
        after: Terminals that may follow each one.
        bytes_after: First bytes of what may follow each one, as bits.
    """

    def __init__(
        self, grammar: Grammar, start: int, leaves: Mapping[int, Leaf], work: Work
    ) -> None:
        self._grammar = grammar
        self._work = work
        self._inner = [i for i in grammar.reached(start, leaves.keys()) if i not in leaves]
        self._nullable = dict.fromkeys(self._inner, False)
        self._first = dict.fromkeys(self._inner, 0)
        for i, (node, leaf) in enumerate(leaves.items()):
            self._nullable[node], self._first[node] = leaf.is_nullable, 1 << i
        while self._begin():
            pass
        self._after = dict.fromkeys(self._first, 0)
        while self._follow():
            pass
        self.start = self._first[start]
        self.after = [self._after[node] for node in leaves]
        begins = [leaf.begins for leaf in leaves.values()]
        self.bytes_after = [self._bytes(after, begins) for after in self.after]

    def _bytes(self, terminals: int, begins: list[int]) -> int:
        found = 0
        for i in bits(terminals):
            self._work.charge(1)
            found |= begins[i]
        return found

    def _begin(self) -> bool:
        """Compute once more what each part begins with; return whether anything is new."""
        is_new = False
        for i in self._inner:
            before = self._nullable[i], self._first[i]
            self._nullable[i], self._first[i] = self._beginning(i)
            is_new = is_new or before != (self._nullable[i], self._first[i])
        return is_new

    def _beginning(self, index: int) -> tuple[bool, int]:
        used = self._grammar.uses(index)
        self._work.charge(1 + len(used))
        found = 0
        match self._grammar.nodes[index]:
            case Sequence(items):
                for item in items:
                    found |= self._first[item]
                    if not self._nullable[item]:
                        return False, found
                return True, found
            case Repeat(what, low, _):
                return low == 0 or self._nullable[what], self._first[what]
        for each in used:
            found |= self._first[each]
        return any(self._nullable[each] for each in used), found

    def _follow(self) -> bool:
        """Compute once more what follows each part; return whether anything is new."""
        before = self._after.copy()
        for i in reversed(self._inner):
            self._work.charge(1)
            self._follow_parts(i, self._after[i])
        return before != self._after

    def _follow_parts(self, index: int, after: int) -> None:
        match self._grammar.nodes[index]:
            case Sequence(items):
                for item in reversed(items):
                    self._after[item] |= after
                    after = self._first[item] | (after if self._nullable[item] else 0)
            case Repeat(what, _, high):
                self._after[what] |= after | (self._first[what] if high != 1 else 0)
            case _:
                for each in self._grammar.uses(index):
                    self._after[each] |= after


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
