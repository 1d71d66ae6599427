"""Terminals of a grammar in GBNF: the regular parts that a lexer reads without changing any text.

The lexer runs all terminals that may come next at once, and ends when none of them can go on. It
then takes those that match what it has read. So a grammar is read exactly if no terminal can go on,
after a text that one of them matches, with a byte that may follow that one. The terminals that may
come next together are computed from those that may follow two terminals with a common text. Where
the condition fails, the terminal that can go on is divided into its parts, down to characters.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import groupby

from quire_structured_output.gbnf.gbnf_automaton import Automaton, Comparison, compared
from quire_structured_output.gbnf.gbnf_flow import Flow, Leaf, bits
from quire_structured_output.gbnf.gbnf_grammar import (
    Alternatives,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)
from quire_structured_output.gbnf.gbnf_recursion import solve_linear_recursion
from quire_structured_output.gbnf.gbnf_regular import (
    RegularParts,
    regular_shapes,
)
from quire_structured_output.gbnf.gbnf_work import TooMuchWorkError, Work

MAX_NODES = 10_000  # of a grammar; a larger one is read character by character
MAX_WORK = 100_000
TERMINAL_WORK = 10
MAX_BESIDE = 8  # positions that one text reaches: an expression's lexer has few states


def with_terminals(grammar: Grammar, root: str) -> tuple[Grammar, dict[int, str]]:
    """Return the grammar with its regular parts grouped, and the parts to write as terminals.

    Args:
        grammar: The grammar; its linear recursions are replaced.
        root: Rule where every text begins.

    Returns:
        The grammar, and what to write for each part that is one terminal.
    """
    if len(grammar.nodes) > MAX_NODES:
        return grammar, {}
    solve_linear_recursion(grammar)
    grouped = _grouped(grammar, regular_shapes(grammar))
    try:
        return grouped, _Search(grouped, root).found()
    except TooMuchWorkError:
        return grammar, {}


def _grouped(grammar: Grammar, regular: Container[int]) -> Grammar:
    """Return the grammar with each run of regular parts in a sequence as a part of its own."""
    grouped = Grammar()
    new: list[int] = []
    for i, node in enumerate(grammar.nodes):
        match node:
            case Sequence(items) if i not in regular:
                new.append(grouped.sequence(_runs(items, new, regular, grouped)))
            case Sequence(items):
                new.append(grouped.add(Sequence(tuple(new[each] for each in items))))
            case Alternatives(options):
                new.append(grouped.add(Alternatives(tuple(new[each] for each in options))))
            case Repeat(what, low, high):
                new.append(grouped.add(Repeat(new[what], low, high)))
            case _:
                new.append(grouped.add(node))
    grouped.rules = {rule: new[body] for rule, body in grammar.rules.items()}
    return grouped


def _runs(
    items: tuple[int, ...], new: list[int], regular: Container[int], grouped: Grammar
) -> list[int]:
    found: list[int] = []
    for is_run, run in groupby(items, key=regular.__contains__):
        parts = [new[each] for each in run]
        found += [grouped.sequence(parts)] if is_run else parts
    return found


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A terminal at one place of the grammar."""

    node: int
    regex: str
    automaton: Automaton
    leaf: Leaf

    def written(self) -> str:
        """Return the terminal in Lark."""
        return f"/{self.regex}/" + ("?" if self.leaf.is_nullable else "")


class _Search:
    """Search of terminals, in rounds that divide those for which the condition fails."""

    def __init__(self, grammar: Grammar, root: str) -> None:
        self._grammar = grammar
        self._start = grammar.rules[root]
        self._work = Work(MAX_WORK)
        self._work.charge(len(grammar.nodes))
        self._shapes = regular_shapes(grammar)
        self._parts = RegularParts(grammar, self._shapes, self._work)
        self._divided = {i for i, shape in self._shapes.items() if not shape.num_positions}
        self._known: dict[int, _Terminal] = {}  # by node
        self._compared: dict[tuple[str, str], Comparison] = {}

    def found(self) -> dict[int, str]:
        """Return what to write for each part that is a terminal."""
        while True:
            whole = self._shapes.keys() - self._divided
            reached = self._grammar.reached(self._start, whole)
            terminals = [self._terminal(i) for i in reached if i in whole]
            failing = set(self._failing(terminals))
            if not failing:
                return {each.node: each.written() for each in terminals}
            for i in failing:
                self._divide(i)

    def _terminal(self, node: int) -> _Terminal:
        if node not in self._known:
            self._work.charge(TERMINAL_WORK)
            automaton = self._parts.automaton(node)
            regex = self._parts.regex(node)
            self._work.charge(len(regex) // 8)
            leaf = Leaf(automaton.begins(), self._shapes[node].is_nullable)
            self._known[node] = _Terminal(node, regex, automaton, leaf)
        return self._known[node]

    def _divide(self, node: int) -> None:
        """Let a terminal be read as its parts, or as those of its rule."""
        self._divided.add(node)
        while isinstance(reference := self._grammar.nodes[node], Reference):
            node = self._grammar.rules[reference.rule]
            self._divided.add(node)

    def _failing(self, terminals: list[_Terminal]) -> Iterator[int]:
        """Yield the terminals that could go on where another one, or itself, must end."""
        leaves = {each.node: each.leaf for each in terminals}
        flow = Flow(self._grammar, self._start, leaves, self._work)
        together = [0] * len(terminals)
        pending, seen = [(flow.start, flow.start)], {(flow.start, flow.start)}
        while pending:
            lefts, rights = pending.pop()
            for i in bits(lefts):
                self._work.charge(1)
                new = rights & ~together[i]
                together[i] |= new
                for j in bits(new):
                    found = self._comparison(terminals[i], terminals[j])
                    is_large = i == j and found.num_beside > MAX_BESIDE
                    if is_large or found.more & flow.bytes_after[i]:
                        yield terminals[j].node
                    pair = flow.after[i], flow.after[j]
                    if found.is_common and pair not in seen:
                        seen.add(pair)
                        pending.append(pair)

    def _comparison(self, left: _Terminal, right: _Terminal) -> Comparison:
        self._work.charge(1)
        if not left.leaf.begins & right.leaf.begins:
            return Comparison(False, 0, 0)
        key = left.regex, right.regex
        if key not in self._compared:
            self._compared[key] = compared(left.automaton, right.automaton, self._work)
        return self._compared[key]
